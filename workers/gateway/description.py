"""What the gateway shall do, as frozen values: the configuration is a pure function of a `Gateway`."""

from dataclasses import dataclass, field, replace
from typing import Literal

UNLIMITED = 0
BURST_SECONDS = 100
"""Tokens are counted over this span: a limit of 60,000 a minute lets 100,000 through at once and 1,000 a second for long."""

Balance = Literal["leastconn", "session", "prefix"]
Controls = Literal["pass", "blank", "refuse"]


@dataclass(frozen=True)
class Limits:
    """How much one key, team or route may take. 0: no limit."""

    requests_per_minute: int = UNLIMITED
    tokens_per_minute: int = UNLIMITED
    concurrency: int = UNLIMITED

    @property
    def burst_tokens(self) -> int:
        """Tokens that may be taken within `BURST_SECONDS`."""
        return self.tokens_per_minute * BURST_SECONDS // 60


CANARY = "n"
"""In the names of backends that stand for a spec that is being rolled out."""
ADAPTER = "a"
"""In the names of routes and backends that stand for an adapter of a base's route; the adapter's number follows."""


def is_of_canary(backend: str) -> bool:
    """True for the name of a backend, or of an adapter's, whose servers run a spec that is being rolled out."""
    return backend.partition(ADAPTER)[0].endswith(CANARY)


@dataclass(frozen=True)
class Server:
    """One instance that may get traffic."""

    instance: int
    address: str
    port: int
    draining: bool = False
    """True: finishes what it has begun and gets nothing new."""

    @property
    def name(self) -> str:
        """Its name in HAProxy."""
        return f"i{self.instance}"


@dataclass(frozen=True)
class Target:
    """A deployment behind a route."""

    number: int
    """Primary key of the route's target: names the backend."""
    deployment: str
    engine_key: str
    """Bearer token of the deployment's engines."""
    weight: int
    """Share of the route's requests, relative to its other targets' weights."""
    servers: tuple[Server, ...] = ()
    version: str = ""
    """Requests with this X-Model-Version come here, whatever the weight."""
    is_long_lane: bool = False
    """Requests over the route's `long_tokens` come here, and no others."""
    in_flight_each: int = 256
    """Requests that one instance works on at a time; more wait in the gateway."""

    is_canary: bool = False
    """The part of a target that goes to a spec that is being rolled out."""
    shadow_percent: int = 0
    """Of a canary: so many of the requests that its target answers are also sent here, and the answers thrown away."""
    adapter: int = 0
    """Number of the adapter that its requests ask for: its servers have it loaded. 0: the model itself."""

    @property
    def backend(self) -> str:
        """Its name in HAProxy."""
        return f"b{self.number}{CANARY if self.is_canary else ''}{f'{ADAPTER}{self.adapter}' if self.adapter else ''}"


@dataclass(frozen=True)
class Route:
    """A public model name."""

    number: int
    names: tuple[str, ...]
    """The public name, then its aliases: those that all engines behind it know."""
    targets: tuple[Target, ...]
    created: int = 0
    """Unix time, for the list of models."""
    context_tokens: int = 0
    """Requests whose estimate is over it are refused; 0: the engine decides."""
    output_cap: int = 0
    """The highest max_tokens; 0: none."""
    output_assumed: int = 512
    """Cost of an answer for which the request names no max_tokens."""
    long_tokens: int = 0
    balance: Balance = "leastconn"
    queue_limit: int = 256
    queue_seconds: int = 30
    silence_seconds: int = 600
    deadline_seconds: int = 0
    """An answer that is not complete so long after its request is ended; 0: none."""
    is_exact: bool = False
    """Prompts are counted by the engine's tokenizer before they are admitted."""
    control_characters: Controls = "pass"
    limits: Limits = Limits()
    fallback: int | None = None
    """Number of the route whose targets take over when none here is ready or its queue is full."""
    adapter: int = 0
    """Set for the name of a LoRA adapter: `number` is its base's route then, whose keys may use it."""
    base: str = ""
    """Name of the base's route; empty for a route itself."""

    @property
    def key(self) -> str:
        """Its name in maps and tables."""
        return f"r{self.number}{f'{ADAPTER}{self.adapter}' if self.adapter else ''}"


@dataclass(frozen=True)
class Key:
    """A key that is neither revoked nor expired."""

    number: int
    sha256: str
    team: int
    routes: frozenset[int]
    expires: int = 0
    """Unix time; 0: never."""
    limits: Limits = Limits()
    team_limits: Limits = Limits()


@dataclass(frozen=True)
class Listener:
    """Where the gateway listens, and with what files and limits."""

    directory: str
    """Folder of configuration, maps and sockets."""
    lua: str
    address: str = "127.0.0.1"
    port: int = 8480
    peer_port: int = 8481
    """Loopback only: counters go to the next process through it when the configuration is loaded anew."""
    certificate: str = ""
    certificate_sha256: str = ""
    threads: int = 2
    body_limit_bytes: int = 2 * 1024 * 1024
    connections: int = 2000
    log_descriptor: int = 900
    """The first of the descriptors of the access log: so high that nothing else in a process has it."""

    @property
    def log_descriptors(self) -> range:
        """One for HAProxy's own messages, then one for each thread: two that write to one lose lines."""
        return range(self.log_descriptor, self.log_descriptor + 1 + self.threads)


@dataclass(frozen=True)
class Gateway:
    """Everything."""

    listener: Listener
    routes: tuple[Route, ...] = ()
    keys: tuple[Key, ...] = ()
    spent: dict[str, int] = field(default_factory=dict)
    """`k1`, `t1` or `r1` whose daily budget is used up, to the Unix time at which the next day begins."""
    corrections: dict[str, int] = field(default_factory=dict)
    """`k1`, `t1`, `r1` to the tokens that were really used within `BURST_SECONDS`, less those that were estimated."""


def within(applied: Gateway, wanted: Gateway) -> Gateway:
    """What of `wanted` can be had in the configuration of `applied`: its routes and targets, with new weights and servers.

    A target that is no longer wanted gets no new requests; one that is new waits for its configuration.
    """
    known = {target.backend: target for route in wanted.routes for target in route.targets}
    routes = tuple(
        replace(route, targets=tuple(_changed(target, known.get(target.backend)) for target in route.targets))
        for route in applied.routes
    )
    return replace(applied, routes=routes, keys=wanted.keys, spent=wanted.spent, corrections=wanted.corrections)


def _changed(applied: Target, wanted: Target | None) -> Target:
    if wanted is None:
        return replace(applied, weight=0, version="", shadow_percent=0)
    return replace(
        applied,
        weight=wanted.weight,
        servers=wanted.servers,
        version=wanted.version,
        shadow_percent=wanted.shadow_percent,
    )
