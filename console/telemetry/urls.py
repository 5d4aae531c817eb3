"""Addresses of the overview and the search."""

from django.urls import path

from console.telemetry import views

urlpatterns = [
    path("", views.overview, name="overview"),
    path("search/", views.search, name="search"),
]
