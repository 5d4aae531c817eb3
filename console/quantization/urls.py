"""Addresses of quantisation."""

from django.urls import path

from console.quantization import views

urlpatterns = [
    path("quantization/", views.quantization_list, name="quantization_list"),
    path("quantization/install/", views.quantizer_install, name="quantizer_install"),
    path("quantization/quantizers/<int:pk>/remove/", views.quantizer_remove, name="quantizer_remove"),
    path("copies/<int:pk>/quantize/", views.quantize, name="quantize"),
    path("copies/<int:pk>/quantization/", views.copy_quantization, name="copy_quantization"),
]
