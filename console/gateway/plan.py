"""The gateway's description as the database has it now."""

import hashlib
import os
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, time, timedelta
from pathlib import Path

from django.db.models import F, Q, QuerySet, Sum
from django.utils import timezone

from console import env
from console.common.errors import Refused
from console.common.secrets import decrypt
from console.deployments.models import Instance
from console.gateway import adapters, models, names, publishing
from workers.gateway import description, program
from workers.gateway.description import Gateway, Limits, Listener, Server


def read(*, corrections: dict[str, int] | None = None) -> Gateway:
    """Everything that the gateway shall do now."""
    return Gateway(
        listener=listener(),
        routes=tuple(_all_routes()),
        keys=tuple(_keys()),
        spent=spent(timezone.now()),
        corrections=corrections or {},
    )


def directory() -> Path:
    """Folder of the gateway's configuration, maps, sockets and access log."""
    return env.environment().console_dir / "gateway"


def listener() -> Listener:
    """Where this console's gateway listens."""
    settled = env.environment()
    certificate = settled.slipway_gateway_certificate
    content = Path(certificate).read_bytes() if certificate and Path(certificate).exists() else b""
    return Listener(
        directory=str(directory()),
        lua=str(program.LUA),
        address=settled.slipway_gateway_bind,
        port=env.gateway_port(),
        peer_port=int(env.runtime().get("gateway_peer_port", env.gateway_port() + 1)),
        certificate=certificate,
        certificate_sha256=hashlib.sha256(content).hexdigest() if content else "",
        threads=min(4, os.cpu_count() or 1),
        body_limit_bytes=settled.slipway_gateway_body_bytes,
    )


def _all_routes() -> Iterable[description.Route]:
    behind = models.Target.objects.filter(route__enabled=True).values_list("deployment", flat=True)
    return adapters.with_adapters(_routes(), adapters.read(set(behind)))


def _routes() -> Iterable[description.Route]:
    routes = list(
        models.Route.objects.filter(enabled=True)
        .order_by("pk")
        .prefetch_related("aliases", "targets__deployment", "targets__canary", "fallback_for__aliases")
    )
    servers = _servers({target.deployment_id for route in routes for target in route.targets.all()})
    new = dict(models.Canary.objects.values_list("target__deployment", "spec"))
    for route in routes:
        asked_as = publishing.asked_as(route)
        yield description.Route(
            number=route.pk,
            names=tuple(route.answering),
            targets=tuple(_targets(route, servers, asked_as, new)),
            created=int(route.created_at.timestamp()),
            context_tokens=route.context_tokens or 0,
            output_cap=route.output_cap or 0,
            output_assumed=route.output_assumed,
            long_tokens=route.long_tokens or 0,
            balance=route.balance,  # type: ignore[arg-type]  # the field's choices are the type's
            queue_limit=route.queue_limit,
            queue_seconds=route.queue_seconds,
            silence_seconds=route.silence_seconds,
            deadline_seconds=route.deadline_seconds or 0,
            is_exact=route.exact_context,
            control_characters=route.control_characters,  # type: ignore[arg-type]  # as above
            limits=_limits(route),
            fallback=route.fallback_id if route.fallback_answers else None,
        )


@dataclass(frozen=True)
class _Found:
    """An instance that may take part: its server, the names that it knows, and its spec."""

    server: Server
    known: frozenset[str]
    spec: int


def _targets(
    route: models.Route, servers: dict[int, list[_Found]], asked_as: frozenset[str], new: dict[int, int]
) -> Iterable[description.Target]:
    """A route's targets; one whose deployment gets another spec stands for two. `new`: that spec by deployment."""
    targets = list(route.targets.all())
    # Shares are per cent of a weight: all weights grow, so that they stay whole numbers.
    scale = 100 if any(hasattr(target, "canary") for target in targets) else 1
    for target in targets:
        spec = new.get(target.deployment_id)
        canary = getattr(target, "canary", None)
        share = canary.share if canary else 0
        # An engine would refuse a name that it does not know: one without a name that answers waits for its restart.
        fitting = [one for one in servers.get(target.deployment_id, []) if asked_as <= one.known]
        whole = description.Target(
            number=target.pk,
            deployment=target.deployment.name,
            engine_key=_engine_key(target),
            weight=target.weight * scale * (100 - share) // 100,
            servers=tuple(one.server for one in fitting if one.spec != spec),
            version=target.version,
            is_long_lane=target.is_long_lane,
            in_flight_each=route.in_flight_each,
        )
        yield whole
        if canary and not target.is_long_lane:
            yield replace(
                whole,
                weight=target.weight * scale * share // 100,
                servers=tuple(one.server for one in fitting if one.spec == spec),
                version=canary.version,
                is_canary=True,
                shadow_percent=canary.shadow if route.shadow_allowed_at else 0,
            )


def _engine_key(target: models.Target) -> str:
    try:
        return decrypt(target.deployment.api_key)
    except Refused:
        return "unreadable"


def _servers(deployments: set[int]) -> dict[int, list[_Found]]:
    """Instances that are ready (or drain), by deployment."""
    instances = list(
        Instance.objects.filter(deployment__in=deployments, state__in=("ready", "draining"))
        .exclude(port=None)
        .select_related("host")
        .order_by("pk")
    )
    known = names.known_to(instances)
    found: dict[int, list[_Found]] = defaultdict(list)
    for instance in instances:
        server = Server(
            instance=instance.pk,
            address=instance.host.address,
            port=instance.port or 0,
            draining=instance.state == "draining" or not instance.run,
        )
        found[instance.deployment_id].append(_Found(server, known.get(instance.pk, frozenset()), instance.spec_id))
    return found


def _keys() -> Iterable[description.Key]:
    by_team: dict[int | None, set[int]] = defaultdict(set)
    for number, team in models.Route.objects.filter(enabled=True).values_list("pk", "team_id"):
        by_team[team].add(number)
    team_limits: dict[int | None, Limits] = {one.team_id: _limits(one) for one in models.TeamLimits.objects.all()}
    usable = Q(expires_at=None) | Q(expires_at__gt=timezone.now())
    # A person who is disabled takes their keys along.
    owned = Q(owner=None) | Q(owner__is_active=True)
    for key in models.Key.objects.filter(usable, owned, revoked_at=None).order_by("pk").prefetch_related("routes"):
        chosen = {route.pk for route in key.routes.all()}
        yield description.Key(
            number=key.pk,
            sha256=key.sha256,
            team=key.team_id or 0,
            routes=frozenset(by_team[key.team_id] if key.all_routes else chosen & by_team[key.team_id]),
            expires=int(key.expires_at.timestamp()) if key.expires_at else 0,
            limits=_limits(key),
            team_limits=team_limits.get(key.team_id, Limits()),
        )


def _limits(limited: models.Limited) -> Limits:
    return Limits(
        requests_per_minute=limited.requests_per_minute or 0,
        tokens_per_minute=limited.tokens_per_minute or 0,
        concurrency=limited.concurrency or 0,
    )


def spent(now: datetime) -> dict[str, int]:
    """Keys, teams and routes whose daily budget is used up, to the moment at which the next day (UTC) begins."""
    today = now.astimezone(UTC).date()
    until = int(datetime.combine(today + timedelta(days=1), time(), tzinfo=UTC).timestamp())
    rows = models.UsageDay.objects.filter(day=today)
    tokens = Sum(F("prompt_tokens") + F("output_tokens"))
    keys = rows.filter(key__daily_tokens__isnull=False).values("key").annotate(used=tokens)
    teams = rows.filter(team__gateway_limits__daily_tokens__isnull=False).values("team").annotate(used=tokens)
    over = [f"k{pk}" for pk in keys.filter(used__gte=F("key__daily_tokens")).values_list("key", flat=True)]
    over += [
        f"t{pk}"
        for pk in teams.filter(used__gte=F("team__gateway_limits__daily_tokens")).values_list("team", flat=True)
    ]
    return dict.fromkeys([*over, *_spent_routes(rows)], until)


def _spent_routes(today: QuerySet[models.UsageDay]) -> Iterable[str]:
    """Routes, and adapters as models of their own, that have taken as much as their route may in a day."""
    routes = models.Route.objects.filter(daily_tokens__isnull=False).values_list("pk", "name", "daily_tokens")
    limits = {f"r{pk}": (name, most or 0) for pk, name, most in routes}
    if not limits:
        return
    for key, name in adapters.names_in_log().items():
        if of_route := limits.get(key.partition(description.ADAPTER)[0]):
            limits[key] = (name, of_route[1])
    taken = today.filter(route__in=[name for name, _most in limits.values()]).values("route")
    used = dict(taken.annotate(used=Sum(F("prompt_tokens") + F("output_tokens"))).values_list("route", "used"))
    yield from (key for key, (name, most) in limits.items() if used.get(name, 0) >= most)
