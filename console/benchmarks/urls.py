"""Addresses of benchmarks."""

from django.urls import path

from console.benchmarks import gate_views, views

urlpatterns = [
    path("benchmarks/", views.benchmark_list, name="benchmark_list"),
    path("benchmarks/new/", views.benchmark_new, name="benchmark_add"),
    path("benchmarks/endpoints/", views.endpoint_list, name="endpoint_list"),
    path("benchmarks/endpoints/<int:pk>/forget/", views.endpoint_forget, name="endpoint_forget"),
    path("benchmarks/import/", views.benchmark_import, name="benchmark_import"),
    path("benchmarks/compare/", views.benchmark_compare, name="benchmark_compare"),
    path("benchmarks/<int:pk>/", views.benchmark_detail, name="benchmark_detail"),
    path("benchmarks/<int:pk>/describe/", views.benchmark_describe, name="benchmark_describe"),
    path("benchmarks/<int:pk>/delete/", views.benchmark_delete, name="benchmark_delete"),
    path("benchmarks/<int:pk>/share/", views.benchmark_share, name="benchmark_share"),
    path("benchmarks/<int:pk>/export.<str:kind>", views.benchmark_export, name="benchmark_export"),
    path("benchmarks/<int:pk>/runs/<str:key>.json", views.benchmark_raw, name="benchmark_raw"),
    path("benchmarks/<int:pk>/baseline/", gate_views.baseline_choose, name="baseline_choose"),
    path("deployments/<int:pk>/benchmarks/", gate_views.deployment_benchmarks, name="deployment_benchmarks"),
    path("deployments/<int:pk>/gate/", gate_views.gate_edit, name="gate_edit"),
    path("shared/benchmarks/<str:token>/", views.shared_benchmark, name="shared_benchmark"),
]
