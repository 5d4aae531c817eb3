"""Alerts."""

from django.apps import AppConfig


class AlertsConfig(AppConfig):
    """The application."""

    name = "console.alerts"

    def ready(self) -> None:
        """Mark alerts on the charts of what they are about."""
        from console.alerts.marks import of_alerts
        from console.telemetry import marks

        marks.contribute(of_alerts)
