"""What the console and a gateway on another machine say to each other, through Redis, behind the gateway's own prefix.

Down: one order, a key that holds everything, sealed to the gateway, and a cursor of the access log. Up: one key with what is
live, and one with the next piece of the access log. Each is the whole truth of its kind and is written again until the other
side has it, so that neither a lost broker nor a restart of either side loses or doubles anything.
"""

import hashlib
from dataclasses import replace

from pydantic import Field, TypeAdapter

from workers.contracts import CONTRACT, CredentialsOrder, Message
from workers.gateway.description import Gateway
from workers.gateway.keeping import Status

FRESH_SECONDS = 15
"""What a gateway told is forgotten by the broker after so long: then it is offline."""
PIECE_BYTES = 512 * 1024

_DESCRIPTION = TypeAdapter(Gateway)


def key_prefix(name: str) -> str:
    """Prefix of every Redis key and channel of a gateway; its Redis user can touch nothing else."""
    return f"g:{name}:"


def order_key(name: str) -> str:
    """Key that holds the `Order`."""
    return f"{key_prefix(name)}order"


def doorbell_channel(name: str) -> str:
    """Channel on which the console says that the order or the cursor changed (no content)."""
    return f"{key_prefix(name)}doorbell"


def told_key(name: str) -> str:
    """Key that holds what the gateway `Told`, for `FRESH_SECONDS`."""
    return f"{key_prefix(name)}told"


def piece_key(name: str) -> str:
    """Key that holds the next `Piece` of its access log."""
    return f"{key_prefix(name)}piece"


def stored_key(name: str) -> str:
    """Hash: name of a log file to the offset up to which the console has stored it."""
    return f"{key_prefix(name)}stored"


class Order(Message):
    """All that a gateway shall do."""

    contract: int = CONTRACT
    digest: str
    """Names the content, corrections of token counts aside, which change all the time: a gateway tells what is in force."""
    sealed: str
    """The description, as JSON sealed to the gateway's public key: engines' keys stand in it."""
    credentials: CredentialsOrder | None = None
    ends: bool = False
    """True: it was removed. HAProxy stops once what it has begun is done."""


class Told(Message):
    """What a gateway says of itself, once a second."""

    contract: int
    agent_version: str
    digest: str = ""
    """Of the order that is in force; empty: none yet."""
    credentials: int = 0
    public_key: str = ""
    url: str = ""
    """Address for clients; empty: nobody has said."""
    address: str = ""
    """Where it listens."""
    waiting_bytes: int = 0
    """Of its access log that the console has not stored."""
    ended: bool = False
    problem: str = ""
    """Why it can't do what was ordered; empty if it can."""
    status: Status = Field(default_factory=Status)


class Piece(Message):
    """Whole lines of an access log."""

    file: str = Field(pattern=r"^[0-9a-f]{32}$")
    """Names the file: one that was begun anew has another name."""
    offset: int = Field(ge=0)
    end: int = Field(ge=0)
    """Bytes, not characters: where the next piece begins."""
    text: str


def content_of(gateway: Gateway) -> str:
    """A description as it is sent: the same description is always the same text."""
    return _DESCRIPTION.dump_json(gateway).decode()


def read_content(text: str) -> Gateway:
    """The opposite. Raises pydantic.ValidationError for anything else."""
    return _DESCRIPTION.validate_json(text)


def digest_of(gateway: Gateway) -> str:
    """Name of what is wanted."""
    return hashlib.sha256(content_of(replace(gateway, corrections={})).encode()).hexdigest()[:16]
