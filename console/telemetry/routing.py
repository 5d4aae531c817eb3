"""Addresses of the WebSockets."""

from django.urls import path

from console.telemetry.consumers import ChangesConsumer, EventsConsumer, LogConsumer

websocket_urlpatterns = [
    path("ws/changes/", ChangesConsumer.as_asgi()),
    path("ws/attempts/<int:pk>/log/", LogConsumer.as_asgi()),
    path("ws/jobs/<int:pk>/events/", EventsConsumer.as_asgi()),
]
