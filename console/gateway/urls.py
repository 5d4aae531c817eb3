"""Addresses of routes, keys, usage and requests."""

from django.urls import path

from console.gateway import key_views, machine_views, route_views, usage_views

urlpatterns = [
    path("routes/", route_views.route_list, name="route_list"),
    path("routes/new/", route_views.route_add, name="route_add"),
    path("routes/<int:pk>/", route_views.route_detail, name="route_detail"),
    path("routes/<int:pk>/edit/", route_views.route_edit, name="route_edit"),
    path("routes/<int:pk>/weights/", route_views.route_weights, name="route_weights"),
    path("routes/<int:pk>/allow-shadows/", route_views.route_allow_shadows, name="route_allow_shadows"),
    path("routes/<int:pk>/forbid-shadows/", route_views.route_forbid_shadows, name="route_forbid_shadows"),
    path("routes/<int:pk>/remove/", route_views.route_remove, name="route_remove"),
    path("gateways/", machine_views.machine_list, name="gateway_list"),
    path("gateways/new/", machine_views.machine_add, name="gateway_add"),
    path("gateways/<int:pk>/token/", machine_views.machine_token, name="gateway_token"),
    path("gateways/<int:pk>/credentials/", machine_views.machine_credentials, name="gateway_credentials"),
    path("gateways/<int:pk>/remove/", machine_views.machine_remove, name="gateway_remove"),
    path("api/gateways/join", machine_views.join, name="gateway_join"),
    path("keys/", key_views.key_list, name="key_list"),
    path("keys/new/", key_views.key_add, name="key_add"),
    path("keys/team/", key_views.team_limits, name="team_limits"),
    path("keys/<int:pk>/", key_views.key_detail, name="key_detail"),
    path("keys/<int:pk>/edit/", key_views.key_edit, name="key_edit"),
    path("keys/<int:pk>/rotate/", key_views.key_rotate, name="key_rotate"),
    path("keys/<int:pk>/revoke/", key_views.key_revoke, name="key_revoke"),
    path("usage/", usage_views.usage_page, name="usage"),
    path("requests/", usage_views.request_list, name="request_list"),
]
