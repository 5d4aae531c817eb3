"""How django-allauth behaves here: nobody signs up; an admin adds people."""

from typing import Any

from allauth.account.adapter import DefaultAccountAdapter
from django.http import HttpRequest


class ClosedAdapter(DefaultAccountAdapter):  # type: ignore[misc]
    """Sign-in without sign-up."""

    def is_open_for_signup(self, request: HttpRequest) -> bool:  # noqa: ARG002
        """Nobody registers by themselves."""
        return False

    def get_client_ip(self, request: HttpRequest) -> Any:
        """Address for rate limits: the peer's; uvicorn has applied trusted proxy headers already."""
        return request.META.get("REMOTE_ADDR") or "127.0.0.1"
