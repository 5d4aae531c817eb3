"""Addresses of hosts."""

from django.urls import path

from console.fleet import api, upkeep_views, views

urlpatterns = [
    path("hosts/", views.host_list, name="host_list"),
    path("hosts/new/", views.host_add, name="host_add"),
    path("hosts/<int:pk>/", views.host_detail, name="host_detail"),
    path("hosts/<int:pk>/arrival/", views.host_arrival, name="host_arrival"),
    path("hosts/<int:pk>/token/", views.host_token, name="host_token"),
    path("hosts/<int:pk>/pause/", upkeep_views.host_pause, name="host_pause"),
    path("hosts/<int:pk>/resume/", upkeep_views.host_resume, name="host_resume"),
    path("hosts/<int:pk>/credentials/", upkeep_views.host_credentials, name="host_credentials"),
    path("hosts/<int:pk>/remove/", upkeep_views.host_remove, name="host_remove"),
    path("api/hosts/join", api.join, name="host_join"),
    path("hosts/<int:pk>/labels/", views.host_labels, name="host_labels"),
    path("hosts/<int:pk>/ports/", views.host_ports, name="host_ports"),
    path("api/hosts/bootstrap.py", api.bootstrap, name="host_bootstrap"),
    path("api/hosts/ca.pem", api.certificate_authority, name="host_authority"),
    path("api/hosts/wheels/", api.wheels, name="host_wheels"),
    path("api/hosts/wheels/<str:name>", api.wheel, name="host_wheel"),
]
