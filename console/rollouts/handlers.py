"""What a rollout's jobs do beside running their steps: bringing the new side up, stopping one side."""

from django.utils.translation import gettext as _

from console.common.errors import Refused
from console.deployments import handlers as deployments
from console.deployments import services
from console.jobs.kinds import JobHandler, register
from console.jobs.models import Job, Step


class BringUpBesideHandler(deployments.BringUpHandler):
    """The new side comes up beside the old one. If it doesn't, what serves goes on serving."""

    def job_failed(self, job: Job, step: Step) -> None:
        """Stop what came up half-way; the deployment is as it was."""
        super().job_failed(job, step)
        services.settle(job.about)

    def before_retry(self, job: Job, step: Step) -> None:
        """A failed start has ended its rollout: a retry would bring up what nobody watches."""
        del job, step
        raise Refused(_("Its rollout has ended. Start a new one from the deployment's page."))


class StopSideHandler(JobHandler):
    """The instances of one side end."""

    def before_step(self, step: Step) -> None:
        """Its turn: order the instance to stop."""
        services.halt(deployments.instance_at(step))

    def step_succeeded(self, step: Step) -> None:
        """Nothing of it is left."""
        deployments.forget(deployments.instance_at(step), reason=_("its side of a rollout was given up"))

    def job_succeeded(self, job: Job) -> None:
        """The other side is the deployment."""
        services.settle(job.about)


def register_handlers() -> None:
    """Called once, when the app is ready."""
    register("rollout", BringUpBesideHandler())
    register("rollout_stop", StopSideHandler())
