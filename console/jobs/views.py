"""Pages of the job ledger."""

from typing import Any

from django.db.models import Prefetch, QuerySet
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.utils.translation import gettext as _
from django.views.decorators.http import require_GET, require_http_methods

from console.access import policies
from console.access.models import User
from console.access.policies import Action
from console.common.given import whole_number
from console.jobs import engine_presentation, presentation, services
from console.jobs.asking import ask
from console.jobs.check_rows import check_rows
from console.jobs.filters import JobFilter
from console.jobs.models import LIVE_STATES, Event, Job, Step

PAGE_SIZE = 50
FIRST_EVENTS = 500
"""How many of the last events stand in the page; the socket goes on from there."""


@require_GET
def job_list(request: HttpRequest) -> HttpResponse:
    """All jobs, newest first. Pages are cut by primary key, so that the last of 10,000 costs what the first does."""
    jobs = policies.visible(request.user, Job.objects.select_related("requested_by"))
    chosen = JobFilter(request.GET, queryset=jobs)
    rows, newer, older = _page(chosen.qs, request.GET)
    _attach_steps(rows)
    query = request.GET.copy()
    for name in ("before", "after"):
        query.pop(name, None)
    context = {
        "jobs": rows,
        "filter": chosen,
        "newer": newer,
        "older": older,
        "query": query.urlencode(),
        "filtered": any(query.values()),
    }
    return render(request, "jobs/list.html", context)


@require_GET
def job_detail(request: HttpRequest, pk: int) -> HttpResponse:
    """One job: its timeline, events, the engine's log."""
    steps_of = Prefetch("steps", queryset=Step.objects.select_related("host"))
    rows = Job.objects.select_related("requested_by").prefetch_related(steps_of)
    job = policies.get(request.user, rows, Action.VIEW, pk=pk)
    context = _describe(job)
    events = list(Event.objects.filter(job=job).order_by("-seq")[: FIRST_EVENTS + 1])
    context["events_cut"] = len(events) > FIRST_EVENTS
    context["events"] = events[FIRST_EVENTS - 1 :: -1] if len(events) > FIRST_EVENTS else events[::-1]
    context["last_seq"] = events[0].seq if events else 0
    return render(request, "jobs/detail.html", context)


@require_http_methods(["GET", "POST"])
def job_cancel(request: HttpRequest, pk: int) -> HttpResponse:
    """Ask for a reason, then cancel."""
    job = policies.get(request.user, Job.objects.all(), Action.OPERATE, pk=pk)
    context = {
        "title": _("Cancel"),
        "heading": _("Cancel “%s”?") % job.title,
        "consequences": [
            _("The running step is asked to stop; what it has begun is undone as far as it can be."),
            _("Steps that are done stay done."),
        ],
        "button": _("Cancel job"),
        "danger": True,
        "back": reverse("job_detail", args=[pk]),
    }

    def act(user: User, reason: str) -> Job:
        services.cancel(job, actor=user, reason=reason)
        return job

    return ask(request, context, act)


@require_http_methods(["GET", "POST"])
def job_retry(request: HttpRequest, pk: int) -> HttpResponse:
    """Ask for a reason, then go on at the failed step."""
    job = policies.get(request.user, Job.objects.all(), Action.OPERATE, pk=pk)
    context = {
        "title": _("Retry"),
        "heading": _("Retry “%s”?") % job.title,
        "consequences": [
            _("The job goes on where it failed. Steps that succeeded are not run again unless they must be.")
        ],
        "button": _("Retry"),
        "back": reverse("job_detail", args=[pk]),
    }

    def act(user: User, reason: str) -> Job:
        services.retry(job, actor=user, reason=reason)
        return job

    return ask(request, context, act)


def _page(rows: QuerySet[Job], query: Any) -> tuple[list[Job], int | None, int | None]:
    """(rows, newest pk if there are newer ones, oldest pk if there are older ones)."""
    before, after = (_pk(query.get(name)) for name in ("before", "after"))
    if after is not None:
        found = list(rows.filter(pk__gt=after).order_by("pk")[: PAGE_SIZE + 1])
        more_newer = len(found) > PAGE_SIZE
        page = found[:PAGE_SIZE][::-1]
        if page:
            return page, page[0].pk if more_newer else None, page[-1].pk
        before = None
    if before is not None:
        rows = rows.filter(pk__lt=before)
    found = list(rows.order_by("-pk")[: PAGE_SIZE + 1])
    page = found[:PAGE_SIZE]
    newer = (page[0].pk if page else before - 1) if before is not None else None
    return page, newer, page[-1].pk if len(found) > PAGE_SIZE else None


def _pk(value: str | None) -> int | None:
    return whole_number(value or "")


def _attach_steps(jobs: list[Job]) -> None:
    """Give live jobs "step n of m" and their current step: one query for the whole page, none for finished jobs."""
    live = [job.pk for job in jobs if job.state in LIVE_STATES]
    steps: dict[int, list[Step]] = {}
    if live:
        for step in Step.objects.filter(job__in=live).select_related("host").order_by("job", "position"):
            steps.setdefault(step.job_id, []).append(step)
    for job in jobs:
        own = steps.get(job.pk, [])
        job.shown_step = presentation.current(own)  # type: ignore[attr-defined]
        job.shown_position = presentation.position(own)  # type: ignore[attr-defined]


def _describe(job: Job) -> dict[str, Any]:
    steps = list(job.steps.all())
    now_at, count = presentation.position(steps)
    remedy = presentation.remedy(job, steps)
    return {
        "job": job,
        "steps": [
            {
                "step": step,
                "facts": presentation.facts(step),
                "checks": check_rows(step.result.get("checks")),
                "findings": presentation.findings(step),
                "waits_for": presentation.waits_for(step),
                "unreached": presentation.unreached(job, step),
                "failure": presentation.failure_line(step),
                "evidence": presentation.evidence_lines(step.failure),
            }
            for step in steps
        ],
        "sentence": presentation.sentence(job, steps),
        "hosts": list(dict.fromkeys(step.host for step in steps)),
        "remedy": remedy,
        "fallback": remedy.fallback,
        "now_at": now_at,
        "step_count": count,
        "evidence": presentation.evidence_lines(job.failure),
        "subject_url": presentation.subject_url(job),
        "relaxed_form": engine_presentation.relaxed_form(job, steps),
        "log_url": presentation.log_url(job, steps),
    }
