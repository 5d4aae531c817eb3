"""Filters of the hosts' list."""

from datetime import timedelta

import django_filters
from django.db.models import Exists, OuterRef, Q, QuerySet
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from console.fleet.models import OFFLINE_AFTER_SECONDS, Device, Host


class HostFilter(django_filters.FilterSet):  # type: ignore[misc]
    """By name or device, presence, kind of device and trouble."""

    q = django_filters.CharFilter(method="by_text", label=_("Name or device"))
    devices = django_filters.ChoiceFilter(
        method="by_devices",
        label=_("Devices"),
        empty_label=_("any devices"),
        choices=[("gpu", _("with GPUs")), ("cpu", _("CPU only")), ("lost", _("with a lost device"))],
    )
    state = django_filters.ChoiceFilter(
        method="by_state",
        label=_("Environment"),
        empty_label=_("any checks"),
        choices=[("failing", _("with failures")), ("warning", _("with warnings")), ("sound", _("all well"))],
    )
    presence = django_filters.ChoiceFilter(
        method="by_presence",
        label=_("State"),
        empty_label=_("any state"),
        choices=[("online", _("online")), ("offline", _("offline")), ("waiting", _("waiting to join"))],
    )
    sort = django_filters.OrderingFilter(
        fields=["name", "last_seen_at", "created_at", "memory_free", "gpu_count", "environment_failures"]
    )

    class Meta:
        model = Host
        fields: list[str] = []

    def by_presence(self, rows: QuerySet[Host], name: str, value: str) -> QuerySet[Host]:  # noqa: ARG002
        """Presence is no column: it follows from when the host was last heard of."""
        limit = timezone.now() - timedelta(seconds=OFFLINE_AFTER_SECONDS)
        if value == "waiting":
            return rows.filter(last_seen_at=None)
        return rows.filter(last_seen_at__gt=limit) if value == "online" else rows.filter(last_seen_at__lte=limit)

    def by_text(self, rows: QuerySet[Host], name: str, value: str) -> QuerySet[Host]:  # noqa: ARG002
        """Part of the host's name, or of the name of one of its devices."""
        with_device = Device.objects.filter(host=OuterRef("pk"), name__icontains=value)
        return rows.filter(Q(name__icontains=value) | Exists(with_device))

    def by_devices(self, rows: QuerySet[Host], name: str, value: str) -> QuerySet[Host]:  # noqa: ARG002
        """With GPUs, with none, or with a device that is lost."""
        if value == "lost":
            return rows.filter(lost_devices__gt=0)
        return rows.filter(gpu_count__gt=0) if value == "gpu" else rows.filter(gpu_count=0)

    def by_state(self, rows: QuerySet[Host], name: str, value: str) -> QuerySet[Host]:  # noqa: ARG002
        """What the environment card says."""
        if value == "sound":
            return rows.filter(environment_failures=0, environment_warnings=0)
        return (
            rows.filter(environment_failures__gt=0) if value == "failing" else rows.filter(environment_warnings__gt=0)
        )
