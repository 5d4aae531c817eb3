"""Addresses of pages that start a job on a host."""

from django.urls import path

from console.jobs import host_views

urlpatterns = [
    path("engines/install/", host_views.engine_install, name="engine_install"),
    path("models/new/", host_views.model_add, name="model_add"),
    path("copies/<int:pk>/verify/", host_views.copy_verify, name="copy_verify"),
]
