"""Filters of the jobs' list."""

import django_filters
from django.db.models import QuerySet
from django.utils.translation import gettext_lazy as _

from console.jobs.models import JOB_STATES, Job

JOB_KINDS = [
    ("deploy", _("Deploy")),
    ("restart", _("Restart")),
    ("rolling_restart", _("Restart one at a time")),
    ("change", _("Change")),
    ("stop", _("Stop")),
    ("verify", _("Verify files")),
    ("install_engine", _("Install engine")),
    ("make_demo_model", _("Make demo model")),
    ("control_run", _("Control run")),
    ("benchmark", _("Benchmark")),
    ("trial", _("Engine of a study")),
    ("quantize", _("Quantise")),
    ("install_quantizer", _("Install llm-compressor")),
]


class JobFilter(django_filters.FilterSet):  # type: ignore[misc]
    """By state, kind and title."""

    state = django_filters.ChoiceFilter(choices=JOB_STATES.choices(), label=_("State"), empty_label=_("any state"))
    kind = django_filters.ChoiceFilter(choices=JOB_KINDS, label=_("Kind"), empty_label=_("any kind"))
    q = django_filters.CharFilter(method="by_text", label=_("Title contains"))

    class Meta:
        model = Job
        fields = ["state", "kind"]

    def by_text(self, rows: QuerySet[Job], name: str, value: str) -> QuerySet[Job]:  # noqa: ARG002
        """Part of the title."""
        return rows.filter(title__icontains=value)
