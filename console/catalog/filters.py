"""Filters of the models' list."""

import django_filters
from django.db.models import Q, QuerySet
from django.utils.translation import gettext_lazy as _

from console.catalog.models import COPY_STATES, Model


class ModelFilter(django_filters.FilterSet):  # type: ignore[misc]
    """By name or architecture, and by the state of a copy."""

    q = django_filters.CharFilter(method="by_text", label=_("Name or architecture"))
    copy = django_filters.ChoiceFilter(
        field_name="revisions__copies__state",
        choices=COPY_STATES.choices(),
        label=_("Copies"),
        empty_label=_("any copy"),
        distinct=True,
    )
    sort = django_filters.OrderingFilter(fields=["name", "created_at"])

    class Meta:
        model = Model
        fields: list[str] = []

    def by_text(self, rows: QuerySet[Model], name: str, value: str) -> QuerySet[Model]:  # noqa: ARG002
        """Part of the name or of a revision's architecture."""
        return rows.filter(Q(name__icontains=value) | Q(revisions__architecture__icontains=value)).distinct()
