"""Addresses of deployments, instances, attempts and the playground."""

from django.urls import path

from console.deployments import (
    brake_views,
    fix_views,
    form_views,
    host_views,
    instance_views,
    log_views,
    planning_views,
    playground,
    views,
)

urlpatterns = [
    path("deployments/", views.deployment_list, name="deployment_list"),
    path("deployments/new/", form_views.deployment_add, name="deployment_add"),
    path("deployments/new/preview/", form_views.deployment_preview, name="deployment_preview"),
    path("deployments/new/redraw/", form_views.deployment_redraw, name="deployment_redraw"),
    path("deployments/new/draft/", form_views.deployment_draft, name="deployment_draft"),
    path(
        "deployments/drafts/<uuid:key>/discard/", form_views.deployment_draft_discard, name="deployment_draft_discard"
    ),
    path("predictions/", planning_views.prediction_list, name="prediction_list"),
    path("devices/", planning_views.device_list, name="device_list"),
    path("devices/new/", planning_views.device_edit, name="device_add"),
    path("devices/<slug:key>/", planning_views.device_edit, name="device_edit"),
    path("devices/<slug:key>/reset/", planning_views.device_reset, name="device_reset"),
    path("models/<int:pk>/fits/", planning_views.model_fits, name="model_fits"),
    path(
        "deployments/<int:pk>/specs/<int:number>/roll-back/",
        planning_views.deployment_roll_back,
        name="deployment_roll_back",
    ),
    path("deployments/<int:pk>/change/", form_views.deployment_change, name="deployment_change"),
    path("deployments/<int:pk>/", views.deployment_detail, name="deployment_detail"),
    path("deployments/<int:pk>/logs/", log_views.deployment_logs, name="deployment_logs"),
    path("deployments/<int:pk>/specs/", views.deployment_specs, name="deployment_specs"),
    path("deployments/<int:pk>/playground/", views.deployment_playground, name="deployment_playground"),
    path("deployments/<int:pk>/settings/", views.deployment_settings, name="deployment_settings"),
    path("deployments/<int:pk>/fixes/", fix_views.deployment_fixes, name="deployment_fixes"),
    path("deployments/<int:pk>/fix/<slug:key>/", fix_views.deployment_fix, name="deployment_fix"),
    path("deployments/<int:pk>/key/", views.deployment_key, name="deployment_key"),
    path("deployments/<int:pk>/start/", views.deployment_start, name="deployment_start"),
    path("deployments/<int:pk>/restart/", views.deployment_restart, name="deployment_restart"),
    path("deployments/<int:pk>/stop/", views.deployment_stop, name="deployment_stop"),
    path("deployments/<int:pk>/delete/", views.deployment_delete, name="deployment_delete"),
    path("deployments/<int:pk>/log/", log_views.deployment_log_part, name="deployment_log_part"),
    path("instances/<int:pk>/", instance_views.instance_detail, name="instance_detail"),
    path("instances/<int:pk>/restart/", instance_views.instance_restart, name="instance_restart"),
    path("instances/<int:pk>/control-run/", instance_views.instance_control_run, name="instance_control_run"),
    path("instances/<int:pk>/log/", log_views.instance_log_part, name="instance_log_part"),
    path("attempts/<int:pk>/accept-answer/", instance_views.attempt_accept_answer, name="attempt_accept_answer"),
    path("attempts/<int:pk>/log/lines/", log_views.attempt_log_lines, name="attempt_log_lines"),
    path("attempts/<int:pk>/log/matches/", log_views.attempt_log_matches, name="attempt_log_matches"),
    path("attempts/<int:pk>/log/file/", log_views.attempt_log_file, name="attempt_log_file"),
    path("hosts/<int:pk>/drain/", host_views.host_drain, name="host_drain"),
    path("brake/", brake_views.brake_banner, name="brake_banner"),
    path("brake/release/", brake_views.brake_release, name="brake_release"),
    path("playground/", playground.playground, name="playground"),
    path("playground/<int:pk>/chat/", playground.playground_chat, name="playground_chat"),
]
