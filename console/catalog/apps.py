"""Set-up of the app."""

from django.apps import AppConfig


class CatalogConfig(AppConfig):
    """Models, revisions, files and copies."""

    name = "console.catalog"
    label = "catalog"
