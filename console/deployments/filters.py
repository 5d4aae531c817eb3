"""Filters of the deployments' list."""

import django_filters
from django.db.models import Q, QuerySet
from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _

from console.access import policies
from console.deployments.models import DEPLOYMENT_STATES, Deployment
from console.fleet.models import Host


def _hosts(request: HttpRequest | None) -> QuerySet[Host]:
    return policies.visible(request.user, Host.objects.all()) if request else Host.objects.none()


class DeploymentFilter(django_filters.FilterSet):  # type: ignore[misc]
    """By state, host, and part of the deployment's or the model's name."""

    state = django_filters.ChoiceFilter(
        choices=DEPLOYMENT_STATES.choices(), label=_("State"), empty_label=_("any state")
    )
    host = django_filters.ModelChoiceFilter(
        field_name="current_spec__host", queryset=_hosts, label=_("Host"), empty_label=_("any host")
    )
    q = django_filters.CharFilter(method="by_text", label=_("Name contains"))

    class Meta:
        model = Deployment
        fields = ["state"]

    def by_text(self, rows: QuerySet[Deployment], name: str, value: str) -> QuerySet[Deployment]:  # noqa: ARG002
        """Part of the deployment's name or of its model's."""
        return rows.filter(Q(name__icontains=value) | Q(current_spec__copy__revision__model__name__icontains=value))
