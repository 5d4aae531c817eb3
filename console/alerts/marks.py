"""Alerts as marks on the charts of what they are about."""

from collections.abc import Iterable
from datetime import datetime

from django.db.models import Q
from django.urls import reverse
from django.utils.translation import gettext as _

from console.alerts.models import Alert
from console.telemetry.marks import MOST, About, Mark, Tone

OPENED, CLOSED = "◆", "◇"


def of_alerts(about: About, began: datetime, ended: datetime) -> Iterable[Mark]:
    """When each alert of the range opened and closed."""
    mine = Q(host__in=about.hosts)
    if about.deployments:
        # Instances have a host, too: there, only what is about the host itself belongs to these deployments.
        mine = Q(deployment__in=about.deployments) | Q(deployment=None, host__in=about.hosts)
    rows = Alert.objects.filter(mine, opened_at__lte=ended).select_related("rule")
    for alert in rows.filter(opened_at__gte=began).order_by("-opened_at")[:MOST]:
        tone: Tone = "bad" if alert.severity == "critical" else "warn"
        yield Mark(alert.opened_at, "alert", f"{alert.rule.title}: {alert.name}", tone, OPENED, _address(alert))
    for alert in rows.filter(closed_at__gte=began, closed_at__lte=ended).order_by("-closed_at")[:MOST]:
        text = _("Over: %s") % f"{alert.rule.title}: {alert.name}"
        yield Mark(alert.closed_at or ended, "alert-over", text, "calm", CLOSED, _address(alert))


def _address(alert: Alert) -> str:
    return reverse("alert_detail", args=[alert.pk])
