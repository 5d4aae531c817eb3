"""One address answers a page or a part of it."""

from django.http import HttpRequest


def wants_part(request: HttpRequest) -> bool:
    """True if htmx asks for a part; a boosted link wants the whole page."""
    details = getattr(request, "htmx", None)
    return bool(details) and not getattr(details, "boosted", False)
