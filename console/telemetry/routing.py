"""Addresses of the WebSockets."""

from django.urls import path

from console.telemetry.consumers import ChangesConsumer, EventsConsumer, LogConsumer
from console.telemetry.metric_consumers import MetricsConsumer, SharedMetricsConsumer

websocket_urlpatterns = [
    path("ws/changes/", ChangesConsumer.as_asgi()),
    path("ws/attempts/<int:pk>/log/", LogConsumer.as_asgi()),
    path("ws/jobs/<int:pk>/events/", EventsConsumer.as_asgi()),
    path("ws/deployments/<int:pk>/metrics/", MetricsConsumer.as_asgi()),
    path("ws/shared/<str:token>/metrics/", SharedMetricsConsumer.as_asgi()),
]
