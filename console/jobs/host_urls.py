"""Addresses of pages that start a job on a host."""

from django.urls import path

from console.jobs import agent_views, copy_to, copy_views, engine_views, model_add

urlpatterns = [
    path("engines/", engine_views.engine_list, name="engine_list"),
    path("engines/install/", engine_views.engine_install, name="engine_install"),
    path("engines/adopt/", engine_views.engine_adopt, name="engine_adopt"),
    path("engines/<int:pk>/", engine_views.engine_detail, name="engine_detail"),
    path("engines/<int:pk>/test/", engine_views.engine_check, name="engine_check"),
    path("engines/<int:pk>/repair/", engine_views.engine_repair, name="engine_repair"),
    path("engines/<int:pk>/remove/", engine_views.engine_remove, name="engine_remove"),
    path("engines/<int:pk>/clear/", engine_views.engine_clear_cache, name="engine_clear_cache"),
    path("engines/<int:pk>/arguments.json", engine_views.engine_arguments, name="engine_arguments"),
    path("hosts/<int:pk>/upgrade/", agent_views.host_upgrade, name="host_upgrade"),
    path("models/new/", model_add.model_add, name="model_add"),
    path("copies/<int:pk>/verify/", copy_views.copy_verify, name="copy_verify"),
    path("copies/<int:pk>/to/", copy_to.copy_to, name="copy_to"),
    path("copies/<int:pk>/repair/", copy_views.copy_repair, name="copy_repair"),
    path("copies/<int:pk>/delete/", copy_views.copy_delete, name="copy_delete"),
    path("copies/<int:pk>/forget/", copy_views.copy_forget, name="copy_forget"),
    path("copies/<int:pk>/allow/<slug:kind>/", copy_views.copy_allow, name="copy_allow"),
    path("consents/<int:pk>/withdraw/", copy_views.consent_withdraw, name="consent_withdraw"),
]
