"""Addresses of the on-call page."""

from django.urls import path

from console.oncall import views

urlpatterns = [
    path("oncall/", views.oncall, name="oncall"),
    path("oncall/restart/", views.restart_all, name="oncall_restart"),
    path("oncall/silence/", views.silence, name="oncall_silence"),
    path("oncall/roll-back/<int:pk>/", views.roll_back, name="oncall_roll_back"),
]
