"""Set-up of the app."""

from django.apps import AppConfig


class TelemetryConfig(AppConfig):
    """What hosts report, and how it reaches browsers."""

    name = "console.telemetry"
    label = "telemetry"
