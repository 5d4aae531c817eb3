"""Filters of the list of benchmarks."""

import django_filters
from django.db.models import Q, QuerySet
from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _

from console.access import policies
from console.benchmarks.models import BENCHMARK_STATES, ORIGINS, Benchmark
from console.benchmarks.profiles import PROFILES
from console.deployments.models import Deployment


def _deployments(request: HttpRequest | None) -> QuerySet[Deployment]:
    return policies.visible(request.user, Deployment.objects.lasting()) if request else Deployment.objects.none()


class BenchmarkFilter(django_filters.FilterSet):  # type: ignore[misc]
    """By state, deployment, profile, why it was made, and part of its name or tags."""

    state = django_filters.ChoiceFilter(
        choices=BENCHMARK_STATES.choices(), label=_("State"), empty_label=_("any state")
    )
    deployment = django_filters.ModelChoiceFilter(
        queryset=_deployments, label=_("Deployment"), empty_label=_("any deployment")
    )
    profile = django_filters.ChoiceFilter(
        choices=[(one.key, one.title) for one in PROFILES.values()], label=_("Profile"), empty_label=_("any profile")
    )
    origin = django_filters.ChoiceFilter(choices=ORIGINS, label=_("Why"), empty_label=_("any reason"))
    q = django_filters.CharFilter(method="by_text", label=_("Name or tag contains"))

    class Meta:
        model = Benchmark
        fields = ["state"]

    def by_text(self, rows: QuerySet[Benchmark], name: str, value: str) -> QuerySet[Benchmark]:  # noqa: ARG002
        """Part of the title, or of the tags."""
        return rows.filter(Q(title__icontains=value) | Q(tags__icontains=value))
