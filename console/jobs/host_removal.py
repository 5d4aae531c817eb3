"""What becomes of jobs whose host is removed: nobody will ever answer for their steps."""

from django.utils.translation import gettext as _

from console.access.models import User
from console.fleet.models import Host
from console.jobs import services
from console.jobs.models import LIVE_STATES, Step
from workers.contracts import Failure, StepFinished


def end_steps(host: Host, actor: User, reason: str) -> None:  # noqa: ARG001 - the job's own log says who, by the audit
    """Fail the steps that wait for this host or run there, and their jobs with them."""
    for step in Step.objects.filter(host=host, state__in=LIVE_STATES).select_related("host", "job").order_by("pk"):
        step.refresh_from_db()
        failure = Failure(
            code="host.removed",
            message=_("%(host)s was removed from the console: %(reason)s") % {"host": host, "reason": reason},
            next=_("Choose another host."),
        )
        services.finished(step, StepFinished(step=step.pk, fence=step.fence, outcome="failed", failure=failure))
