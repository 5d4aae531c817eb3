"""Set-up of the app."""

from django.apps import AppConfig


class TelemetryConfig(AppConfig):
    """What hosts report, and how it reaches browsers."""

    name = "console.telemetry"
    label = "telemetry"

    def ready(self) -> None:
        """Tell the planner how long requests are here."""
        from console.deployments import requests_seen
        from console.telemetry import request_lengths

        requests_seen.count_by(request_lengths.of_model)
