"""Addresses of rollouts."""

from django.urls import path

from console.rollouts import views

urlpatterns = [
    path("rollouts/", views.rollout_list, name="rollout_list"),
    path("deployments/<int:pk>/roll-out/", views.rollout_new, name="rollout_new"),
    path("rollouts/<int:pk>/", views.rollout_detail, name="rollout_detail"),
    path("rollouts/<int:pk>/hold/", views.rollout_hold, name="rollout_hold"),
    path("rollouts/<int:pk>/go-on/", views.rollout_go_on, name="rollout_go_on"),
    path("rollouts/<int:pk>/skip/", views.rollout_skip, name="rollout_skip"),
    path("rollouts/<int:pk>/abort/", views.rollout_abort, name="rollout_abort"),
    path("rollouts/<int:pk>/stop-again/", views.rollout_stop_again, name="rollout_stop_again"),
    path("rollouts/<int:pk>/let-go/", views.rollout_let_go, name="rollout_let_go"),
]
