"""Addresses of all pages."""

from django.urls import URLPattern, URLResolver, include, path

urlpatterns: list[URLPattern | URLResolver] = [
    path("", include("console.oncall.urls")),
    path("", include("console.alerts.urls")),
    path("", include("console.rollouts.urls")),
    path("", include("console.benchmarks.urls")),
    path("", include("console.studies.urls")),
    path("", include("console.quantization.urls")),
    path("", include("console.telemetry.urls")),
    path("", include("console.gateway.urls")),
    path("", include("console.deployments.urls")),
    path("", include("console.jobs.urls")),
    path("", include("console.jobs.host_urls")),
    path("", include("console.catalog.urls")),
    path("", include("console.fleet.urls")),
    path("", include("console.access.urls")),
]
