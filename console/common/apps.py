"""Set-up of the app."""

from django.apps import AppConfig


class CommonConfig(AppConfig):
    """What all apps share."""

    name = "console.common"
    label = "common"
