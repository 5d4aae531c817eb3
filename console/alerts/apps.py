"""Alerts."""

from django.apps import AppConfig


class AlertsConfig(AppConfig):
    """The application."""

    name = "console.alerts"
