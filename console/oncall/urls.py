"""Addresses of the on-call page."""

from django.urls import path

from console.oncall import incident_views, tree_views, views

urlpatterns = [
    path("oncall/", views.oncall, name="oncall"),
    path("oncall/restart/", views.restart_all, name="oncall_restart"),
    path("oncall/silence/", views.silence, name="oncall_silence"),
    path("oncall/roll-back/<int:pk>/", views.roll_back, name="oncall_roll_back"),
    path("oncall/trees/", tree_views.tree_list, name="tree_list"),
    path("oncall/trees/<slug:key>/", tree_views.tree_detail, name="tree_detail"),
    path("oncall/incidents/", incident_views.incident_list, name="incident_list"),
    path("oncall/incidents/<int:pk>/", incident_views.incident_detail, name="incident_detail"),
    path("oncall/incidents/<int:pk>/note/", incident_views.incident_note, name="incident_note"),
    path("oncall/incidents/<int:pk>/incident.json", incident_views.incident_export, {"form": "json"}, "incident_json"),
    path("oncall/incidents/<int:pk>/incident.md", incident_views.incident_export, {"form": "md"}, "incident_markdown"),
]
