from django.apps import AppConfig


class JobsConfig(AppConfig):
    """The job ledger."""

    name = "console.jobs"
    label = "jobs"
