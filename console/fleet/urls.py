"""Addresses of hosts."""

from django.urls import path

from console.fleet import api, views

urlpatterns = [
    path("hosts/", views.host_list, name="host_list"),
    path("hosts/new/", views.host_add, name="host_add"),
    path("hosts/<int:pk>/", views.host_detail, name="host_detail"),
    path("hosts/<int:pk>/token/", views.host_token, name="host_token"),
    path("hosts/<int:pk>/remove/", views.host_remove, name="host_remove"),
    path("api/hosts/join", api.join, name="host_join"),
    path("hosts/<int:pk>/ports/", views.host_ports, name="host_ports"),
]
