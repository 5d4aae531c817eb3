"""Filters of the hosts' list."""

from datetime import timedelta
from typing import Any

import django_filters
from django.db.models import Exists, OuterRef, Q, QuerySet
from django.db.models.fields.json import KeyTransform
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from console.fleet import labels
from console.fleet.models import OFFLINE_AFTER_SECONDS, Device, Host
from console.fleet.presentation import NOT_REMOVED

DEVICES = [("gpu", _("with GPUs")), ("cpu", _("CPU only")), ("lost", _("with a lost device"))]


class HostFilter(django_filters.FilterSet):  # type: ignore[misc]
    """By name or device, presence, kind of device, label and trouble. Removed hosts only if they are asked for."""

    q = django_filters.CharFilter(method="by_text", label=_("Name or device"))
    devices = django_filters.ChoiceFilter(
        method="by_devices", label=_("Devices"), empty_label=_("any devices"), choices=DEVICES
    )
    label = django_filters.ChoiceFilter(method="by_label", label=_("Label"), empty_label=_("any label"), choices=[])
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
        choices=[
            ("online", _("online")),
            ("offline", _("offline")),
            ("waiting", _("waiting to join")),
            ("paused", _("paused")),
            ("draining", _("draining")),
            ("removed", _("removed")),
        ],
    )
    sort = django_filters.OrderingFilter(
        fields=["name", "last_seen_at", "created_at", "memory_free", "gpu_count", "environment_failures"]
    )

    class Meta:
        model = Host
        fields: list[str] = []

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.filters["devices"].extra["choices"] = [*DEVICES, *self._kinds()]
        self.filters["label"].extra["choices"] = self._labels()

    def _kinds(self) -> list[tuple[Any, list[tuple[str, str]]]]:
        """The kinds of GPUs that the hosts have, as a group of choices."""
        gpus = Device.objects.filter(kind="gpu", host__in=self.queryset.order_by().values("pk"))
        names = gpus.order_by("name").values_list("name", flat=True).distinct()
        return [(_("Kinds of GPUs"), [(name, name) for name in names])] if names else []

    def _labels(self) -> list[tuple[str, str]]:
        told = self.queryset.order_by().exclude(labels={}).values_list("labels", flat=True).distinct()
        words = {word for each in told for word in labels.text_of(each).split()}
        return [(word, word) for word in sorted(words)]

    def filter_queryset(self, queryset: QuerySet[Host]) -> QuerySet[Host]:
        """Leave out what was removed, which stays only because the ledger names it."""
        rows: QuerySet[Host] = super().filter_queryset(queryset)
        return rows if self.form.cleaned_data.get("presence") == "removed" else rows.filter(NOT_REMOVED)

    def by_label(self, rows: QuerySet[Host], name: str, value: str) -> QuerySet[Host]:  # noqa: ARG002
        """With this label, written `name=value` or `name`."""
        label, _equals, text = value.partition("=")
        return rows.annotate(labelled=KeyTransform(label, "labels")).filter(labelled=text)

    def by_presence(self, rows: QuerySet[Host], name: str, value: str) -> QuerySet[Host]:  # noqa: ARG002
        """Presence is no column: it follows from when the host was last heard of; what people want of it is one."""
        if value == "removed":
            return rows.exclude(NOT_REMOVED)
        if value in ("paused", "draining"):
            return rows.filter(state=value)
        if value == "waiting":
            return rows.filter(last_seen_at=None)
        limit = timezone.now() - timedelta(seconds=OFFLINE_AFTER_SECONDS)
        return rows.filter(last_seen_at__gt=limit) if value == "online" else rows.filter(last_seen_at__lte=limit)

    def by_text(self, rows: QuerySet[Host], name: str, value: str) -> QuerySet[Host]:  # noqa: ARG002
        """Part of the host's name, or of the name of one of its devices."""
        with_device = Device.objects.filter(host=OuterRef("pk"), name__icontains=value)
        return rows.filter(Q(name__icontains=value) | Exists(with_device))

    def by_devices(self, rows: QuerySet[Host], name: str, value: str) -> QuerySet[Host]:  # noqa: ARG002
        """With GPUs, with none, with a device that is lost, or with a GPU of this kind."""
        if value == "lost":
            return rows.filter(lost_devices__gt=0)
        if value in ("gpu", "cpu"):
            return rows.filter(gpu_count__gt=0) if value == "gpu" else rows.filter(gpu_count=0)
        return rows.filter(Exists(Device.objects.filter(host=OuterRef("pk"), kind="gpu", name=value)))

    def by_state(self, rows: QuerySet[Host], name: str, value: str) -> QuerySet[Host]:  # noqa: ARG002
        """What the environment card says."""
        if value == "sound":
            return rows.filter(environment_failures=0, environment_warnings=0)
        return (
            rows.filter(environment_failures__gt=0) if value == "failing" else rows.filter(environment_warnings__gt=0)
        )
