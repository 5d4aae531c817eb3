"""Conditions that see trouble days ahead: what ends soon, what is nearly used up, and a planner that is no longer right."""

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path

from cryptography import x509
from django.db.models import F, Sum
from django.urls import reverse
from django.utils.translation import gettext as _

from console import env
from console.access.models import DEFAULT_TEAM_ID
from console.alerts.readings import Reading, Scene, about_deployment
from console.common import authority
from console.deployments import launches
from console.deployments.models import Deployment
from console.gateway.models import Key, Route, TeamLimits, UsageDay

DAY_SECONDS = 86400
PREDICTED = ("weights_bytes", "kv_cache_tokens")
"""What a plan says and a start's log then tells: see `workers.contracts.LaunchFacts`."""


def keys(scene: Scene) -> Iterable[Reading]:
    """Days until each usable API key ends; a key that is being replaced ends as planned."""
    usable = Key.objects.filter(team_id=scene.team, revoked_at=None, expires_at__gt=scene.now, replaced_by=None)
    for key in usable.select_related("owner"):
        days = _days_until(key.expires_at, scene.now)
        text = _("It ends in %(days)s. Rotate it: the old key stays valid while its users change over.")
        cause = _("Its owner is %s.") % key.owner if key.owner else ""
        url = reverse("key_detail", args=[key.pk])
        yield Reading(f"key:{key.pk}", key.name, days, text % {"days": _days(days)}, cause, url)


def certificates(scene: Scene) -> Iterable[Reading]:
    """Days until each certificate that this console shows to others ends. They are nobody's own: the first team is told."""
    if scene.team != DEFAULT_TEAM_ID:
        return
    for name, path, advice in _shown_certificates():
        if (ends := _end_of(path)) is None:
            continue
        days = _days_until(ends, scene.now)
        what = _("It ends in %s.") % _days(days) if days > 0 else _("It has ended: nobody trusts it any more.")
        yield Reading(f"certificate:{path.name}", name, days, f"{what} {advice}", str(path), reverse("route_list"))


def _shown_certificates() -> Iterator[tuple[str, Path, str]]:
    if given := env.environment().slipway_gateway_certificate:
        yield (
            _("Certificate of the gateway"),
            Path(given),
            _("Put a new one into its file: the gateway takes it by itself."),
        )
    if env.environment().hosts_names:
        renewed = _(
            "The console renews it by itself a month before: look into the log of `manage.py up` for why it could not."
        )
        yield _("Certificate for other machines"), authority.certificate_path(), renewed
        rejoin = _("Make a new authority and let every host join again.")
        yield _("Certificate authority of the console"), authority.directory() / "ca.pem", rejoin


def _end_of(path: Path) -> datetime | None:
    """When the first certificate of a PEM file ends; None if there is none to read."""
    try:
        return x509.load_pem_x509_certificates(path.read_bytes())[0].not_valid_after_utc
    except (OSError, ValueError, IndexError):
        return None


def budgets(scene: Scene) -> Iterable[Reading]:
    """The share of each daily token budget that is used today (UTC)."""
    rows = UsageDay.objects.filter(team_id=scene.team, day=scene.now.astimezone(UTC).date())
    used = {
        key: (prompt or 0) + (output or 0)
        for key, prompt, output in rows.values_list("key").annotate(Sum("prompt_tokens"), Sum("output_tokens"))
    }
    for key in Key.objects.filter(team_id=scene.team, revoked_at=None, daily_tokens__gt=0):
        url = reverse("key_detail", args=[key.pk])
        yield Reading(f"budget:key:{key.pk}", key.name, *_share(used.get(key.pk, 0), key.daily_tokens or 0), "", url)
    limits = TeamLimits.objects.filter(team_id=scene.team, daily_tokens__gt=0).select_related("team").first()
    if limits and limits.daily_tokens:
        share = _share(sum(used.values()), limits.daily_tokens)
        yield Reading(f"budget:team:{limits.team_id}", str(limits.team), *share, "", reverse("usage"))
    taken = dict(rows.values_list("route").annotate(used=Sum(F("prompt_tokens") + F("output_tokens"))))
    for route in Route.objects.filter(team_id=scene.team, daily_tokens__gt=0):
        share = _share(taken.get(route.name, 0), route.daily_tokens or 0)
        yield Reading(f"budget:route:{route.pk}", route.name, *share, "", reverse("route_detail", args=[route.pk]))


def _share(used: int, limit: int) -> tuple[float, str]:
    text = _("%(used)s of %(limit)s tokens of today are used; at the limit requests are refused until midnight UTC.")
    return used / limit, text % {"used": f"{used:,}", "limit": f"{limit:,}"}


def predictions(scene: Scene) -> Iterable[Reading]:
    """How far the plan of each deployment's latest start was off, as a fraction of what was measured: the worst number."""
    for deployment in Deployment.objects.lasting().filter(team_id=scene.team).exclude(state="stopped"):
        launch = launches.latest(deployment)
        if launch is None:
            continue
        errors = {name: launches.error_of(launch.prediction, launch.truth, name) for name in PREDICTED}
        known = {name: error for name, error in errors.items() if error is not None}
        if known:
            name, error = max(known.items(), key=lambda one: abs(one[1]))
            text = _(
                "%(what)s were planned %(percent)s off what the start showed: don't trust the plan for this model."
            )
            words = {"weights_bytes": _("Weights"), "kv_cache_tokens": _("Tokens of the KV cache")}[name]
            yield about_deployment(deployment, abs(error), text % {"what": words, "percent": f"{100 * error:+.1f} %"})


def _days_until(end: datetime | None, now: datetime) -> float:
    return (end - now).total_seconds() / DAY_SECONDS if end else float("inf")


def _days(days: float) -> str:
    if days < 1:
        return _("less than a day")
    return _("%d days") % days if days >= 2 else _("one day")
