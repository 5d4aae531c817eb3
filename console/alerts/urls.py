"""Addresses of alerts, rules and channels."""

from django.urls import path

from console.alerts import views

urlpatterns = [
    path("alerts/", views.alert_list, name="alert_list"),
    path("alerts/open/", views.open_alerts, name="open_alerts"),
    path("alerts/<int:pk>/", views.alert_detail, name="alert_detail"),
    path("alerts/<int:pk>/acknowledge/", views.alert_acknowledge, name="alert_acknowledge"),
    path("alerts/<int:pk>/silence/", views.alert_silence, name="alert_silence"),
    path("alerts/silences/<int:pk>/end/", views.silence_end, name="silence_end"),
    path("alerts/rules/", views.rule_list, name="rule_list"),
    path("alerts/rules/new/", views.rule_edit, name="rule_add"),
    path("alerts/rules/preview/", views.rule_preview, name="rule_preview"),
    path("alerts/rules/<int:pk>/", views.rule_edit, name="rule_edit"),
    path("alerts/rules/<int:pk>/delete/", views.rule_delete, name="rule_delete"),
    path("alerts/channels/", views.channel_list, name="channel_list"),
    path("alerts/channels/new/", views.channel_edit, name="channel_add"),
    path("alerts/channels/<int:pk>/", views.channel_edit, name="channel_edit"),
    path("alerts/channels/<int:pk>/test/", views.channel_test, name="channel_test"),
    path("alerts/channels/<int:pk>/delete/", views.channel_delete, name="channel_delete"),
]
