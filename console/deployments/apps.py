from django.apps import AppConfig


class DeploymentsConfig(AppConfig):
    """What should be served, and the instances that serve it."""

    name = "console.deployments"
    label = "deployments"
