"""Set-up of studies."""

from django.apps import AppConfig


class StudiesConfig(AppConfig):
    """One engine after the other, each with another argument, measured on the same device."""

    name = "console.studies"

    def ready(self) -> None:
        """Name the handler of its jobs; keep deployments as they are that a study stopped for a while."""
        from console.deployments import holds
        from console.studies import handlers, services

        handlers.register_handlers()
        holds.hold_by(services.holds)
