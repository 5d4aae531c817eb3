"""The brake: when much of the fleet turns bad at once, the cause is probably one, and probably not the engines.

A switch, a file server, a clock, or the console itself: whatever it is, ending engines by machine makes it worse. So while
more than a third of the instances that should serve turned bad within two minutes, automatic actions stop: hosts show hung
engines and leave them alone (`DesiredState.hold`), and whatever the console would do by itself asks `refuse_automatic`
first. What people order is done. A process that has died is started again all the same: that ends nothing.
"""

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import structlog
from django.db import transaction
from django.utils import timezone
from django.utils.translation import gettext as _

from console.access import services as access
from console.access.models import User
from console.common import live
from console.common.errors import Refused
from console.deployments.models import Brake, Instance
from console.fleet import desired
from console.fleet.models import OFFLINE_AFTER_SECONDS, Host

log = structlog.get_logger(__name__)

SHARE = 1 / 3
WINDOW_SECONDS = 120.0
CALM_SECONDS = 120.0
"""It lets go by itself once nothing has been over the limit for so long."""
QUIET_AFTER_RELEASE_SECONDS = 900.0
"""A person who lets go knows more than we: it doesn't engage again for a while."""
SMALLEST_FLEET = 3
_BAD_STATES = ("unhealthy", "restarting", "crashed")


@dataclass(frozen=True)
class Turned:
    """How many of the instances that should serve turned bad within the window."""

    bad: int
    total: int
    hosts: tuple[str, ...]
    """Names of hosts that fell silent within the window."""

    @property
    def too_many(self) -> bool:
        """True if it looks like one cause."""
        return self.total >= SMALLEST_FLEET and self.bad > SHARE * self.total


def look() -> Turned:
    """Count now. An instance of a host that fell silent counts once, whatever its last known state."""
    now = timezone.now()
    since = now - timedelta(seconds=WINDOW_SECONDS)
    wanted = list(Instance.objects.filter(run=True, ordered=True, deployment__for_study=False).select_related("host"))
    silent_since = now - timedelta(seconds=WINDOW_SECONDS + OFFLINE_AFTER_SECONDS)
    silent = {
        one.host_id: one.host.name
        for one in wanted
        if not one.host.is_online and one.host.last_seen_at is not None and one.host.last_seen_at > silent_since
    }
    bad = [
        one
        for one in wanted
        if one.host_id in silent or (one.state in _BAD_STATES and one.state_since > since and one.was_ready)
    ]
    return Turned(len(bad), len(wanted), tuple(sorted(silent.values())))


def watch() -> None:
    """One round: engage, stay, or let go. Called by a beat."""
    turned = look()
    with transaction.atomic():
        engaged = Brake.objects.select_for_update().filter(closed_at=None).first()
        if engaged is None:
            if turned.too_many and not _released_lately():
                _engage(turned)
        elif turned.too_many:
            Brake.objects.filter(pk=engaged.pk).update(over_at=timezone.now(), bad=turned.bad, total=turned.total)
        elif (timezone.now() - engaged.over_at).total_seconds() > CALM_SECONDS:
            _close(engaged, reason=_("the fleet has been calm for two minutes"), actor=None)


def engaged() -> Brake | None:
    """The brake that holds now, or None."""
    return Brake.objects.filter(closed_at=None).first()


def refuse_automatic(what: str) -> None:
    """Raise `Refused` while the brake holds. For whatever the console would do without a person having asked."""
    if (brake := engaged()) is not None:
        raise Refused(_("%(what)s was not done by itself: %(why)s") % {"what": what, "why": brake.reason})


def release(*, actor: User, reason: str) -> None:
    """A person lets go: automatic actions go on, and it doesn't engage again for a quarter of an hour."""
    with transaction.atomic():
        brake = Brake.objects.select_for_update().filter(closed_at=None).first()
        if brake is None:
            raise Refused(_("The brake is not engaged any more."))
        access.record(actor=actor, action="brake.release", target=_("brake"), target_url="/", reason=reason)
        _close(brake, reason=reason, actor=actor)


def hold(_host: Host) -> dict[str, Any]:
    """Contribution to a host's desired state."""
    brake = engaged()
    return {"hold": brake.reason} if brake else {}


def _released_lately() -> bool:
    since = timezone.now() - timedelta(seconds=QUIET_AFTER_RELEASE_SECONDS)
    return Brake.objects.filter(closed_at__gt=since, closed_by__isnull=False).exists()


def _engage(turned: Turned) -> None:
    reason = _("%(bad)d of %(total)d instances turned bad within two minutes") % {
        "bad": turned.bad, "total": turned.total
    }  # fmt: skip
    if turned.hosts:
        reason += _("; silent: %(hosts)s") % {"hosts": ", ".join(turned.hosts[:5])}
    Brake.objects.create(reason=reason, bad=turned.bad, total=turned.total)
    log.warning("brake engaged", bad=turned.bad, total=turned.total, silent=list(turned.hosts))
    access.record(actor=None, action="brake.engage", target=_("brake"), target_url="/", reason=reason)
    _tell_hosts()


def _close(brake: Brake, *, reason: str, actor: User | None) -> None:
    brake.closed_at, brake.closed_by, brake.close_reason = timezone.now(), actor, reason
    brake.save(update_fields=["closed_at", "closed_by", "close_reason"])
    log.info("brake released", by=str(actor or "system"))
    _tell_hosts()


def _tell_hosts() -> None:
    for host in Host.objects.exclude(redis_password_sha256=""):
        desired.change(host)
    live.changed("brake")
