"""Addresses of all pages."""

from django.urls import URLPattern, URLResolver, include, path

urlpatterns: list[URLPattern | URLResolver] = [
    path("account/", include("allauth.account.urls")),
]
