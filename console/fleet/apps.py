"""Set-up of the app."""

from django.apps import AppConfig


class FleetConfig(AppConfig):
    """Hosts, their devices and their engines."""

    name = "console.fleet"
    label = "fleet"
