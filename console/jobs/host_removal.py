"""What becomes of jobs and copies whose host is removed: nobody will ever answer for them, unless it joins again."""

from django.utils.translation import gettext as _

from console.access.models import User
from console.catalog.models import Copy
from console.common.states import move
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


_LEFT = "left_with_host"
"""Mark, in a copy's verification, of one that is gone from the pages only because its host is."""


def lose_copies(host: Host, actor: User, reason: str) -> None:
    """Nothing is deployed from, or copied off, a host that was removed: its copies are gone, though their files stay."""
    why = _("%(host)s was removed from the console: %(reason)s") % {"host": host, "reason": reason}
    for copy in Copy.objects.filter(host=host).exclude(state="removed").order_by("pk"):
        Copy.objects.filter(pk=copy.pk).update(verification=copy.verification | {_LEFT: copy.state})
        move(copy, to="removed", reason=why, actor=actor)


def find_copies(host: Host) -> None:
    """A host that joins again may still have the files that it had: they count once they are verified."""
    for copy in Copy.objects.filter(host=host, state="removed", verification__has_key=_LEFT).order_by("pk"):
        was = copy.verification.pop(_LEFT)
        Copy.objects.filter(pk=copy.pk).update(verification=copy.verification)
        if was in ("verified", "unverified", "damaged"):
            move(copy, to="unverified", reason=_("%(host)s has joined again") % {"host": host})
