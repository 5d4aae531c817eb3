"""Set-up of the app."""

from django.apps import AppConfig


class OperationsConfig(AppConfig):
    """Bringing the whole console up on one machine, the demo, backup and restore."""

    name = "console.operations"
    label = "operations"
