"""The gateway's maps: what changes without a new configuration. A file of each lies beside it, for the next start."""

import hashlib
import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace

from workers.gateway.description import Gateway, Key, Limits, Route, Target

SLOTS = 100
NAMES = (
    "keys",
    "grants",
    "names",
    "routes",
    "slots",
    "pins",
    "open",
    "models",
    "lists",
    "spent",
    "corrections",
    "tokenizers",
    "shadows",
)

Maps = dict[str, dict[str, str]]


def build(gateway: Gateway) -> Maps:
    """All maps by name, each from key to value."""
    routes: dict[int, list[Route]] = defaultdict(list)
    for route in gateway.routes:
        routes[route.number].append(route)
    scopes = {
        scope_of(key, routes): [route for number in sorted(key.routes & routes.keys()) for route in routes[number]]
        for key in gateway.keys
    }
    return {
        "keys": {key.sha256: _key(key, routes) for key in gateway.keys},
        "grants": {f"{scope}/{route.key}": "1" for scope, allowed in scopes.items() for route in allowed},
        "names": {name: route.key for route in gateway.routes for name in route.names},
        "routes": {route.key: _route(route) for route in gateway.routes},
        "slots": {f"{route.key}@{at}": name for route in gateway.routes for at, name in enumerate(slots(route))},
        "pins": dict(_pins(gateway.routes)),
        "open": {name: "1" for name, target in backends(gateway).items() if target.weight},
        "models": {name: _model(route, name) for route in gateway.routes for name in route.names},
        "lists": {scope: _listed(allowed) for scope, allowed in scopes.items()},
        "spent": {name: str(until) for name, until in gateway.spent.items()},
        "corrections": {name: str(tokens) for name, tokens in gateway.corrections.items() if tokens},
        "tokenizers": dict(_tokenizers(gateway)),
        "shadows": dict(_shadows(gateway.routes)),
    }


def text(entries: Mapping[str, str]) -> str:
    """A map as its file."""
    return "".join(f"{key} {value}\n" for key, value in sorted(entries.items()))


def scope_of(key: Key, routes: Mapping[int, object]) -> str:
    """Name of the set of routes that a key may use: keys with equal rights share one."""
    allowed = ",".join(str(number) for number in sorted(key.routes & routes.keys()))
    return "s" + hashlib.sha256(allowed.encode()).hexdigest()[:12]


def slots(route: Route) -> list[str]:
    """Backends of a route for each of 100 equal shares of its requests, by weight (largest remainders)."""
    shared = [target for target in route.targets if target.weight > 0 and not target.is_long_lane]
    total = sum(target.weight for target in shared)
    if not total:
        return []
    exact = [(SLOTS * target.weight / total, target) for target in shared]
    counts = {target.backend: int(share) for share, target in exact}
    by_rest = sorted(exact, key=lambda pair: int(pair[0]) - pair[0])
    for _share, target in by_rest[: SLOTS - sum(counts.values())]:
        counts[target.backend] += 1
    # Whoever has a weight gets requests: the smallest share of several deployments is still one of a hundred.
    for name in [name for name, count in counts.items() if not count]:
        counts[max(counts, key=lambda other: counts[other])] -= 1
        counts[name] = 1
    return [name for name, count in counts.items() for _slot in range(count)]


def _limits(limits: Limits) -> list[int]:
    return [limits.requests_per_minute, limits.burst_tokens, limits.concurrency]


def _key(key: Key, routes: Mapping[int, object]) -> str:
    fields: list[object] = [f"k{key.number}", f"t{key.team}", scope_of(key, routes), key.expires]
    return ";".join(map(str, fields + _limits(key.limits) + _limits(key.team_limits)))


def _route(route: Route) -> str:
    own = [route.context_tokens, route.output_cap, route.output_assumed, route.long_tokens]
    kept = 1 if route.balance == "session" else 0
    how = [route.control_characters, 1 if route.is_exact else 0, route.deadline_seconds]
    return ";".join(map(str, [*_limits(route.limits), *own, kept, *how]))


def _tokenizers(gateway: Gateway) -> Iterable[tuple[str, str]]:
    """By backend, what counts its prompts: the address of an instance and its key."""
    for name, target in backends(gateway).items():
        ready = [server for server in target.servers if not server.draining]
        if ready:
            host = f"[{ready[0].address}]" if ":" in ready[0].address else ready[0].address
            yield name, f"{host}:{ready[0].port} {target.engine_key}"


def _pins(routes: Iterable[Route]) -> Iterable[tuple[str, str]]:
    """Backends that a request reaches by what it is, not by weight: `r1@v:NAME` and `r1@long`."""
    for route in routes:
        for target in route.targets:
            if target.version:
                yield f"{route.key}@v:{target.version}", target.backend
            if target.is_long_lane:
                yield f"{route.key}@long", target.backend


def _shadows(routes: Iterable[Route]) -> Iterable[tuple[str, str]]:
    """By `r1@b1`, a route and the backend that answers its request: the backend that gets a copy, and of how many per cent.

    The route counts, too: a request that another route sends to this backend as its fallback is not one of this route's.
    """
    for route in routes:
        for target in route.targets:
            if target.shadow_percent and any(not server.draining for server in target.servers):
                yield (
                    f"{route.key}@{replace(target, is_canary=False).backend}",
                    f"{target.backend};{target.shadow_percent}",
                )


def _model(route: Route, name: str) -> str:
    shown: dict[str, object] = {"id": name, "object": "model", "created": route.created, "owned_by": "slipway"}
    if route.base:
        shown["parent"] = route.base
    if route.context_tokens:
        shown["max_model_len"] = route.context_tokens
    return json.dumps(shown, separators=(",", ":"))


def _listed(routes: Iterable[Route]) -> str:
    return ",".join(_model(route, name) for route in routes for name in route.names) or " "


def backends(gateway: Gateway) -> dict[str, Target]:
    """All targets by the name of their backend."""
    return {target.backend: target for route in gateway.routes for target in route.targets}
