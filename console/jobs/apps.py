"""Set-up of the job ledger."""

from typing import Any

from django.apps import AppConfig


class JobsConfig(AppConfig):
    """The job ledger."""

    name = "console.jobs"
    label = "jobs"

    def ready(self) -> None:
        """Contribute cancelled steps and offered copies to desired states; name the handlers of host jobs."""
        from console.fleet import desired
        from console.fleet import services as fleet
        from console.jobs import copy_jobs, copy_sharing, engine_jobs, host_jobs, host_removal

        desired.contribute(_cancelled_steps)
        desired.contribute(copy_sharing.offers)
        fleet.on_removal(host_removal.end_steps)
        fleet.on_removal(host_removal.lose_copies)
        fleet.on_join(host_removal.find_copies)
        host_jobs.register_handlers()
        copy_jobs.register_handlers()
        copy_sharing.register_handlers()
        engine_jobs.register_handlers()


def _cancelled_steps(host: Any) -> dict[str, Any]:
    from workers.contracts import StepCancellation

    steps = host.steps.filter(state="cancelling")
    return {"cancelled_steps": [StepCancellation(step=step.pk, fence=step.fence) for step in steps]}
