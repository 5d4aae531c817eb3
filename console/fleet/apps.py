"""Set-up of the app."""

from django.apps import AppConfig


class FleetConfig(AppConfig):
    """Hosts, their devices and their engines."""

    name = "console.fleet"
    label = "fleet"

    def ready(self) -> None:
        """Contribute new credentials to desired states."""
        from console.fleet import credentials, desired

        desired.contribute(lambda host: {"credentials": credentials.order(host)})
