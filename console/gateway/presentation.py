"""What the gateway's pages show: a route in a sentence, its targets with their shares, calls to paste."""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from django.db.models import Prefetch, QuerySet
from django.utils.formats import number_format
from django.utils.translation import gettext as _

from console import env
from console.common.spans import relative
from console.common.states import LOOKS, Look
from console.deployments import snippets as calls
from console.deployments.models import Instance
from console.deployments.services import Endpoint
from console.gateway import names, publishing
from console.gateway.models import Key, Limited, Route, Target
from workers.gateway.description import CANARY
from workers.gateway.keeping import Status

RouteRows = QuerySet[Route]


@dataclass(frozen=True)
class ShownTarget:
    """A target with what is true of it now."""

    target: Target
    share: float
    """Per cent of the route's requests."""
    ready: int
    in_rotation: int
    waiting_for_restart: int
    """Ready instances that were started before one of the route's names, or of those that fall back to it, was added."""
    kept_out: int
    """Of these, those that lack a name that answers: they get no requests."""


@dataclass(frozen=True)
class ShownRoute:
    """A route with its truth in a sentence."""

    route: Route
    targets: list[ShownTarget]
    look: Look
    sentence: str


def route_rows() -> RouteRows:
    """Routes with everything that their pages show, in a constant number of queries."""
    ready = Instance.objects.filter(state="ready").exclude(port=None)
    targets = Target.objects.select_related("deployment").prefetch_related(
        Prefetch("deployment__instances", queryset=ready, to_attr="ready_instances")
    )
    return Route.objects.select_related("fallback", "shadow_allowed_by").prefetch_related(
        "aliases", "fallback_for__aliases", Prefetch("targets", queryset=targets)
    )


def shown(route: Route, status: Status | None) -> ShownRoute:
    """A route as its pages show it."""
    asked_as = publishing.asked_as(route)
    all_names = frozenset(route.names).union(*(other.names for other in route.fallback_for.all()))
    targets = list(route.targets.all())
    ready: dict[int, list[Instance]] = {
        target.pk: getattr(target.deployment, "ready_instances", []) for target in targets
    }
    known = names.known_to([instance for some in ready.values() for instance in some])
    up = {(one["backend"], one["instance"]) for one in (status.servers if status else []) if one["up"]}
    total = sum(target.weight for target in targets if not target.is_long_lane) or 1
    rows = [
        ShownTarget(
            target=target,
            share=0.0 if target.is_long_lane else 100 * target.weight / total,
            ready=len(ready[target.pk]),
            in_rotation=sum(
                not up.isdisjoint({(f"b{target.pk}", f"i{one.pk}"), (f"b{target.pk}{CANARY}", f"i{one.pk}")})
                for one in ready[target.pk]
            ),
            waiting_for_restart=sum(
                not all_names <= known.get(instance.pk, frozenset()) for instance in ready[target.pk]
            ),
            kept_out=sum(not asked_as <= known.get(instance.pk, frozenset()) for instance in ready[target.pk]),
        )
        for target in targets
    ]
    look, sentence = _truth(route, rows, status)
    return ShownRoute(route=route, targets=rows, look=look, sentence=sentence)


def _truth(route: Route, rows: list[ShownTarget], status: Status | None) -> tuple[Look, str]:
    if not route.enabled:
        return Look(_("switched off"), "player-stop", "grey"), _("Switched off: clients get 404.")
    if not rows:
        return LOOKS["draft"], _("No deployment stands behind it: clients get 503.")
    if status is None or not status.up:
        return LOOKS["unknown"], _("The gateway does not answer, so nothing is known of what it serves.")
    serving = sum(row.in_rotation for row in rows)
    kept_out = sum(row.kept_out for row in rows)
    sentence = _("Requests reach %(count)d instances of %(all)d deployments.") % {"count": serving, "all": len(rows)}
    if not serving:
        sentence = _("No instance is in rotation: clients get 503.")
        if route.fallback:
            sentence = _("No instance is in rotation: requests go to %(name)s.") % {"name": route.fallback}
    if kept_out:
        sentence += " " + _(
            "%(count)d ready instances were started before a name was added, and get requests after a restart."
        ) % {"count": kept_out}
    if waits := what_waits(route):
        sentence += " " + waits
    if not serving:
        return LOOKS["failed"] if not route.fallback else LOOKS["degraded"], sentence
    weighted = [row for row in rows if row.target.weight]
    whole = all(row.in_rotation for row in weighted)
    return LOOKS["serving" if whole and not kept_out else "degraded"], sentence


def what_waits(route: Route) -> str:
    """Which of a route's names, and whether its fallback, wait for a rolling restart; empty if nothing does."""
    parts = []
    if route.waiting:
        text = _("Until every instance behind it was restarted, clients that ask for %(names)s get 404.")
        if route.fallback:
            text = _("Until every instance behind it and behind %(name)s was restarted, %(names)s gets 404.")
        parts.append(text % {"names": ", ".join(route.waiting), "name": route.fallback})
    if route.fallback and not route.fallback_answers:
        text = _("%(name)s takes over only once its instances were restarted: they do not know this name yet.")
        parts.append(text % {"name": route.fallback})
    return " ".join(parts)


def gateway_sentence(status: Status | None) -> str:
    """The truth about the gateway itself."""
    if status is None:
        return _("The gateway's controller has been silent for 15 s: what HAProxy has goes on, but changes wait.")
    if not status.up:
        return _("HAProxy does not answer: clients can't reach any model. %(problem)s") % {"problem": status.problem}
    if status.problem:
        return _("The last change was refused and the one before stays in force: %(problem)s") % {
            "problem": status.problem
        }
    text = _("HAProxy %(version)s answers. Routes: %(routes)d, keys: %(keys)d.") % {
        "version": status.version,
        "routes": status.routes,
        "keys": status.keys,
    }
    if status.changed_at:
        when = relative(datetime.fromtimestamp(status.changed_at, tz=UTC))
        text += " " + _("Last change: %(when)s.") % {"when": when}
    if status.not_sent:
        text += " " + _("The access log is not taken by %(problem)s") % {"problem": status.not_sent}
    return text


def snippets(model: str, *, key: str = calls.HIDDEN_KEY) -> dict[str, str]:
    """Calls to paste, through the gateway."""
    endpoint = Endpoint(url=env.gateway_url(), key=key, model=model)
    return {"curl": calls.curl(endpoint, key=key), "python": calls.openai_python(endpoint, key=key)}


def route_facts(route: Route) -> list[tuple[str, str]]:
    """How a route treats requests."""
    facts = [
        (_("Requests go"), str(route.get_balance_display())),
        (_("Falls back to"), str(route.fallback or "–")),
        *_limits(route),
        (_("Budget"), _budget(route.daily_tokens)),
        (_("Context"), _tokens(route.context_tokens) if route.context_tokens else _("the engine decides")),
        (_("Highest max_tokens"), _tokens(route.output_cap) if route.output_cap else _("no cap")),
        (_("At work in one instance"), _count(route.in_flight_each)),
        (_("Waiting at most"), _("%(count)s requests, %(seconds)s s") % _waiting(route)),
        (_("Silence at most"), _("%s s") % _count(route.silence_seconds)),
    ]
    if route.deadline_seconds:
        facts.append((_("Whole answer at most"), _("%s s") % _count(route.deadline_seconds)))
    if route.exact_context:
        facts.append((_("Prompts"), _("counted by the engine's tokenizer")))
    if route.control_characters != "pass":
        facts.append((_("Control characters"), str(route.get_control_characters_display())))
    if route.long_tokens:
        facts.append((_("Long lane"), _("from %s") % _tokens(route.long_tokens)))
    return facts


def key_facts(key: Key) -> list[tuple[str, str]]:
    """What a key may do."""
    may = _("every route of the team") if key.all_routes else ", ".join(route.name for route in key.routes.all())
    return [(_("May use"), may), *_limits(key), (_("Budget"), _budget(key.daily_tokens))]


def _budget(daily_tokens: int | None) -> str:
    return _("%s a day") % _tokens(daily_tokens) if daily_tokens else _("no budget")


def _limits(limited: Limited) -> list[tuple[str, str]]:
    parts = []
    if limited.requests_per_minute:
        parts.append(_("%s requests a minute") % _count(limited.requests_per_minute))
    if limited.tokens_per_minute:
        parts.append(_("%s a minute") % _tokens(limited.tokens_per_minute))
    if limited.concurrency:
        parts.append(_("%s requests at a time") % _count(limited.concurrency))
    return [(_("Limits"), ", ".join(parts) or _("none"))]


def _waiting(route: Route) -> dict[str, Any]:
    return {"count": _count(route.queue_limit), "seconds": _count(route.queue_seconds)}


def _count(number: int) -> str:
    return str(number_format(number))


def _tokens(number: int) -> str:
    return _("%s tokens") % _count(number)
