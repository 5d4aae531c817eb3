"""Addresses of the overview, the search and the metrics."""

from django.urls import path

from console.telemetry import metric_views, prometheus_views, views

urlpatterns = [
    path("", views.overview, name="overview"),
    path("search/", views.search, name="search"),
    path("metrics", prometheus_views.console_metrics, name="console_metrics"),
    path("prometheus/sd/", prometheus_views.service_discovery, name="prometheus_sd"),
    path("prometheus/instances/<uuid:uuid>/", prometheus_views.instance_metrics, name="instance_metrics"),
    path("dashboards/", metric_views.fleet, name="fleet"),
    path("dashboards/wall/", metric_views.fleet_wall, name="fleet_wall"),
    path("dashboards/series/", metric_views.fleet_series, name="fleet_series"),
    path("dashboards/table.csv", metric_views.fleet_csv, name="fleet_csv"),
    path("hosts/<int:pk>/metrics/", metric_views.host_metrics, name="host_metrics"),
    path("hosts/<int:pk>/metrics/series/", metric_views.host_series, name="host_series"),
    path("hosts/<int:pk>/metrics/table.csv", metric_views.host_csv, name="host_csv"),
    path("deployments/<int:pk>/metrics/", metric_views.deployment_metrics, name="deployment_metrics"),
    path("deployments/<int:pk>/metrics/series/", metric_views.deployment_series, name="deployment_series"),
    path("deployments/<int:pk>/metrics/table.csv", metric_views.deployment_csv, name="deployment_csv"),
    path("deployments/<int:pk>/metrics/share/", metric_views.deployment_share, name="deployment_share"),
    path("shared/<str:token>/", metric_views.shared_metrics, name="shared_metrics"),
    path("shared/<str:token>/series/", metric_views.shared_series, name="shared_series"),
    path("shared/<str:token>/table.csv", metric_views.shared_csv, name="shared_csv"),
]
