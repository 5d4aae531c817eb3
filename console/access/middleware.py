"""What holds for every request of a person who is signed in."""

from collections.abc import Callable

from django.contrib import messages
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import redirect
from django.urls import reverse
from django.utils.translation import gettext as _

ALLOWED_BEFORE = ("account_me", "account_logout", "set_theme", "set_language")
"""Pages that someone may open who must change their password first."""


class PersonMiddleware:
    """Notes the address for the audit log, and leads to the password page whoever must change theirs first."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        """Let the request through, or redirect."""
        user = request.user
        if not user.is_authenticated:
            return self.get_response(request)
        user.request_address = request.META.get("REMOTE_ADDR", "")  # type: ignore[attr-defined]
        if not user.must_change_password or request.path in {reverse(name) for name in ALLOWED_BEFORE}:
            return self.get_response(request)
        return _lead_to_password(request)


def _lead_to_password(request: HttpRequest) -> HttpResponse:
    page = reverse("account_me")
    if getattr(request, "htmx", False) or "HX-Request" in request.headers:
        return HttpResponse(status=200, headers={"HX-Redirect": page})
    if "text/html" not in request.headers.get("accept", "text/html"):
        return JsonResponse({"message": _("Change your password first.")}, status=403)
    messages.warning(request, _("Choose a password of your own first; the one you were given works only once."))
    return redirect(page)
