"""What every page's frame needs."""

from typing import Any

from django.http import HttpRequest


def shell(request: HttpRequest) -> dict[str, Any]:
    """What the person may do, as `may.operate` and so on; theme from the cookie."""
    from console.access.policies import Action, can

    theme = request.COOKIES.get("theme", "auto")
    return {
        "may": {action.value: can(request.user, action) for action in Action},
        "theme": theme if theme in {"light", "dark"} else "auto",
    }
