"""Addresses of models, their copies and their sources."""

from django.urls import path

from console.catalog import copy_pages, source_views, views

urlpatterns = [
    path("models/", views.model_list, name="model_list"),
    path("models/<int:pk>/", views.model_detail, name="model_detail"),
    path("copies/<int:pk>/", copy_pages.copy_detail, name="copy_detail"),
    path("hosts/<int:pk>/copies/", copy_pages.host_copies, name="host_copies"),
    path("sources/", source_views.source_list, name="source_list"),
    path("sources/new/", source_views.source_add, name="source_add"),
    path("sources/<int:pk>/", source_views.source_edit, name="source_edit"),
    path("sources/<int:pk>/token/", source_views.source_token, name="source_token"),
    path("sources/<int:pk>/token/test/", source_views.source_test, name="source_test"),
    path("sources/<int:pk>/token/remove/", source_views.source_drop_token, name="source_drop_token"),
    path("sources/<int:pk>/remove/", source_views.source_remove, name="source_remove"),
]
