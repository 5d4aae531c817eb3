"""Addresses of people, accounts and the audit log."""

from allauth.account import views as allauth_views
from django.urls import include, path

from console.access import views

urlpatterns = [
    path("people/", views.people_list, name="people_list"),
    path("people/new/", views.person_add, name="person_add"),
    path("people/<int:pk>/role/", views.person_role, name="person_role"),
    path("people/<int:pk>/active/", views.person_active, name="person_active"),
    path("people/<int:pk>/password/", views.person_password, name="person_password"),
    path("account/me/", views.account_me, name="account_me"),
    path("account/theme/", views.set_theme, name="set_theme"),
    path("account/language/", views.set_language, name="set_language"),
    path("audit/", views.audit_list, name="audit_list"),
    # Of allauth's account pages only these: there are no e-mail addresses here, and nobody signs up.
    path("account/login/", allauth_views.login, name="account_login"),
    path("account/logout/", allauth_views.logout, name="account_logout"),
    path("account/inactive/", allauth_views.account_inactive, name="account_inactive"),
    path("account/reauthenticate/", allauth_views.reauthenticate, name="account_reauthenticate"),
    path("account/signup/", views.closed, name="account_signup"),
    path("account/2fa/", include("allauth.mfa.urls")),
]
