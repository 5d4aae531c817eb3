"""Filters of the hosts' list."""

from datetime import timedelta

import django_filters
from django.db.models import QuerySet
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from console.fleet.models import OFFLINE_AFTER_SECONDS, Host


class HostFilter(django_filters.FilterSet):  # type: ignore[misc]
    """By name and presence."""

    q = django_filters.CharFilter(field_name="name", lookup_expr="icontains", label=_("Name"))
    presence = django_filters.ChoiceFilter(
        method="by_presence",
        label=_("State"),
        empty_label=_("any state"),
        choices=[("online", _("online")), ("offline", _("offline")), ("waiting", _("waiting to join"))],
    )
    sort = django_filters.OrderingFilter(fields=["name", "last_seen_at", "created_at"])

    class Meta:
        model = Host
        fields: list[str] = []

    def by_presence(self, rows: QuerySet[Host], name: str, value: str) -> QuerySet[Host]:  # noqa: ARG002
        """Presence is no column: it follows from when the host was last heard of."""
        limit = timezone.now() - timedelta(seconds=OFFLINE_AFTER_SECONDS)
        if value == "waiting":
            return rows.filter(last_seen_at=None)
        return rows.filter(last_seen_at__gt=limit) if value == "online" else rows.filter(last_seen_at__lte=limit)
