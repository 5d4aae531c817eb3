"""Addresses of studies."""

from django.urls import path

from console.studies import views

urlpatterns = [
    path("studies/", views.study_list, name="study_list"),
    path("studies/new/", views.study_add, name="study_add"),
    path("studies/<int:pk>/", views.study_detail, name="study_detail"),
    path("studies/<int:pk>/cancel/", views.study_cancel, name="study_cancel"),
    path("studies/<int:pk>/go-on/", views.study_go_on, name="study_go_on"),
    path("studies/<int:pk>/delete/", views.study_delete, name="study_delete"),
    path("studies/<int:pk>/export.<str:kind>", views.study_export, name="study_export"),
    path("studies/trials/<int:pk>/apply/", views.trial_apply, name="trial_apply"),
]
