"""What is broken, for whoever is on call."""

from django.apps import AppConfig


class OncallConfig(AppConfig):
    """The application."""

    name = "console.oncall"
