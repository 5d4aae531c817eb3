"""Set-up of the app."""

from django.apps import AppConfig


class AccessConfig(AppConfig):
    """People, teams, roles and the audit log."""

    name = "console.access"
    label = "access"
