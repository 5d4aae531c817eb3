"""Filters of the audit log."""

from typing import Any

import django_filters
from django import forms
from django.db.models import Q, QuerySet
from django.utils.translation import gettext_lazy as _
from django.utils.translation import pgettext_lazy

from console.access.models import AuditEntry, User

AREAS = [
    ("deployment", _("deployments")),
    ("instance", _("instances")),
    ("job", _("jobs")),
    ("host", _("hosts")),
    ("engine", _("engines")),
    ("model", _("models")),
    ("copy", _("copies")),
    ("person", _("people")),
    ("report", _("reports of hosts")),
]


def _people(request: Any) -> QuerySet[User]:
    return User.objects.filter(team_id=request.user.team_id).order_by("username")


class AuditFilter(django_filters.FilterSet):  # type: ignore[misc]
    """By person, area, text and day."""

    person = django_filters.ModelChoiceFilter(
        field_name="actor", queryset=_people, label=_("Person"), empty_label=_("anyone")
    )
    area = django_filters.ChoiceFilter(method="by_area", choices=AREAS, label=_("About"), empty_label=_("anything"))
    since = django_filters.DateFilter(
        field_name="at",
        lookup_expr="date__gte",
        label=pgettext_lazy("day", "From"),
        widget=forms.DateInput(attrs={"type": "date"}),
    )
    until = django_filters.DateFilter(
        field_name="at",
        lookup_expr="date__lte",
        label=pgettext_lazy("day", "To"),
        widget=forms.DateInput(attrs={"type": "date"}),
    )
    q = django_filters.CharFilter(method="by_text", label=_("Action, object or reason contains"))

    class Meta:
        model = AuditEntry
        fields: list[str] = []

    def by_area(self, rows: QuerySet[AuditEntry], name: str, value: str) -> QuerySet[AuditEntry]:  # noqa: ARG002
        """Actions are dotted, and begin with what they are about."""
        return rows.filter(action__startswith=f"{value}.")

    def by_text(self, rows: QuerySet[AuditEntry], name: str, value: str) -> QuerySet[AuditEntry]:  # noqa: ARG002
        """Part of the action, the object's name, the reason or the person's name."""
        return rows.filter(
            Q(action__icontains=value)
            | Q(target__icontains=value)
            | Q(reason__icontains=value)
            | Q(actor_name__icontains=value)
        )
