"""Set-up of rollouts."""

from django.apps import AppConfig


class RolloutsConfig(AppConfig):
    """A new spec beside the old one, with a growing share of requests, judged at each step."""

    name = "console.rollouts"

    def ready(self) -> None:
        """Name the handlers of its jobs; keep deployments as they are meanwhile; drive beside the gateway's controller."""
        from console.deployments import holds
        from console.gateway import controller
        from console.rollouts import driver, handlers, services

        handlers.register_handlers()
        holds.hold_by(services.why_held)
        controller.accompany(driver.Driver)
