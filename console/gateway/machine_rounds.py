"""The controller's part with gateways on other machines: orders go down, access logs come up."""

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import structlog
from django.utils import timezone
from pydantic import ValidationError

from console.common import broker
from console.common.errors import Refused
from console.fleet import broker_users, credentials
from console.gateway import access_log, machines
from console.gateway.models import GatewayMachine, LogCursor
from console.gateway.sending import Sender
from workers.gateway import messages, program
from workers.gateway.description import Gateway
from workers.gateway.messages import Order, Piece
from workers.sealing import seal

log = structlog.get_logger(__name__)

LOOK_SECONDS = 5.0
"""So often it is noted who was heard of, and what the broker lost is written again."""
LEAVE_SECONDS = 120.0
"""One that was told to end and is not heard of for so long is forgotten."""
MOST_PIECES = 8
"""Of one machine's log in one round, so that others get their turn."""
STORE_SECONDS = 0.3
"""So long a round stores what went through them; the rest waits, because the gateway here waits for the round."""


class MachineRounds:
    """One process's knowledge of them."""

    def __init__(self, directory: Path, senders: Sequence[Sender]) -> None:
        self._path = directory / program.ACCESS_LOG
        self._senders = senders
        self._readers: dict[int, access_log.Reader] = {}
        self._ordered: dict[int, Order] = {}
        self._contents: dict[int, tuple[object, ...]] = {}
        self._looked_at = 0.0
        self._turn = 0

    def round(self, wanted: Gateway) -> None:
        """Give each what it shall do, and store what went through it. Raises RedisError, OperationalError."""
        joined = list(GatewayMachine.objects.exclude(redis_password_sha256=""))
        is_look = bool(joined) and time.monotonic() - self._looked_at > LOOK_SECONDS
        if is_look:
            self._looked_at = time.monotonic()
            for machine in broker_users.unsettled(joined):
                broker_users.settle(machine)
        for machine in joined:
            try:
                self._order(machine, self._reader(machine), wanted)
                if is_look:
                    self._look(machine)
            except Refused as refusal:
                log.warning("a gateway elsewhere has to wait", gateway=machine.name, why=str(refusal))
        self._store_all(joined)

    def _store_all(self, joined: Sequence[GatewayMachine]) -> None:
        """Each in its turn: the next round begins with the one that this round had no time for."""
        until = time.monotonic() + STORE_SECONDS
        for _number in range(len(joined)):
            if time.monotonic() > until:
                return
            machine = joined[self._turn % len(joined)]
            self._turn += 1
            self._store(machine, self._reader(machine), until)

    def _reader(self, machine: GatewayMachine) -> access_log.Reader:
        if machine.pk not in self._readers:
            self._readers[machine.pk] = access_log.Reader(self._path, self._senders, gateway=machine.name)
        return self._readers[machine.pk]

    # -- up -----------------------------------------------------------------------------------------------------------

    def _store(self, machine: GatewayMachine, reader: access_log.Reader, until: float) -> None:
        """Store the piece that waits, say so, and wait a moment for the next one while there are more."""
        link = broker.connection()
        for _number in range(MOST_PIECES):
            text = link.get(messages.piece_key(machine.name))
            if not text:
                return
            try:
                piece = Piece.model_validate_json(text)
            except ValidationError as error:
                log.warning("a piece of a log can't be understood", gateway=machine.name, error=str(error))
                link.delete(messages.piece_key(machine.name))
                return
            end = reader.take(piece)
            pipe = link.pipeline()
            pipe.hset(messages.stored_key(machine.name), piece.file, end)
            pipe.delete(messages.piece_key(machine.name))
            pipe.publish(messages.doorbell_channel(machine.name), "stored")
            pipe.execute()
            if piece.end - piece.offset < messages.PIECE_BYTES // 2 or time.monotonic() > until:
                return
            time.sleep(0.02)

    def _look(self, machine: GatewayMachine) -> None:
        for file, offset in LogCursor.objects.filter(file__startswith=f"{machine.name}/").values_list("file", "offset"):
            broker.connection().hset(messages.stored_key(machine.name), file.partition("/")[2], offset)
        told = machines.told_by(machine)
        if told is None:
            if machine.leaving_since and (timezone.now() - machine.leaving_since).total_seconds() > LEAVE_SECONDS:
                machines.forget(machine)
            return
        GatewayMachine.objects.filter(pk=machine.pk).update(last_seen_at=timezone.now())
        machines.settle(machine, told)
        if machine.leaving_since is not None and told.ended:
            machines.forget(machine)

    # -- down ---------------------------------------------------------------------------------------------------------

    def _order(self, machine: GatewayMachine, reader: access_log.Reader, wanted: Gateway) -> None:
        own = replace(machines.for_others(wanted), corrections=reader.corrections.sums(time.time()))
        facts = (own, machine.public_key, machine.next_password, machine.leaving_since)
        if facts != self._contents.get(machine.pk):
            self._ordered[machine.pk] = Order(
                digest=messages.digest_of(own),
                sealed=seal(machine.public_key, messages.content_of(own)),
                credentials=credentials.order(machine),
                ends=machine.leaving_since is not None,
            )
            self._contents[machine.pk] = facts
            self._write(machine)
        elif not broker.connection().exists(messages.order_key(machine.name)):
            self._write(machine)

    def _write(self, machine: GatewayMachine) -> None:
        pipe = broker.connection().pipeline()
        pipe.set(messages.order_key(machine.name), self._ordered[machine.pk].model_dump_json())
        pipe.publish(messages.doorbell_channel(machine.name), "order")
        pipe.execute()
