"""Set-up of deployments."""

from django.apps import AppConfig


class DeploymentsConfig(AppConfig):
    """What should be served, and the instances that serve it."""

    name = "console.deployments"
    label = "deployments"

    def ready(self) -> None:
        """Contribute instances and the brake to desired states; name the handlers of deploy, restart and stop jobs."""
        from console.deployments import adapters, brake, draining, handlers, observations
        from console.fleet import desired
        from console.fleet import services as fleet
        from console.jobs import copy_checks

        desired.contribute(observations.orders)
        fleet.on_removal(draining.give_up)
        desired.contribute(brake.hold)
        copy_checks.on_judgement(adapters.copy_judged)
        handlers.register_handlers()
