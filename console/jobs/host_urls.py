"""Addresses of pages that start a job on a host."""

from django.urls import path

from console.jobs import copy_to, copy_views, host_views, model_add

urlpatterns = [
    path("engines/install/", host_views.engine_install, name="engine_install"),
    path("models/new/", model_add.model_add, name="model_add"),
    path("copies/<int:pk>/verify/", copy_views.copy_verify, name="copy_verify"),
    path("copies/<int:pk>/to/", copy_to.copy_to, name="copy_to"),
    path("copies/<int:pk>/repair/", copy_views.copy_repair, name="copy_repair"),
    path("copies/<int:pk>/delete/", copy_views.copy_delete, name="copy_delete"),
    path("copies/<int:pk>/forget/", copy_views.copy_forget, name="copy_forget"),
    path("copies/<int:pk>/allow/<slug:kind>/", copy_views.copy_allow, name="copy_allow"),
    path("consents/<int:pk>/withdraw/", copy_views.consent_withdraw, name="consent_withdraw"),
]
