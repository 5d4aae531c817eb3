"""What every answer gets: refusals as plain messages, and cookies that stay on the side of TLS where they were set."""

from collections.abc import Callable

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render

from console.common.errors import Refused


class PlainErrorsMiddleware:
    """Show a `Refused` that no form caught: as a message on the page it came from, or as a page of its own."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        """Pass the request on."""
        return self.get_response(request)

    def process_exception(self, request: HttpRequest, exception: Exception) -> HttpResponse | None:
        """Answer for a refusal; leave everything else to Django."""
        if not isinstance(exception, Refused):
            return None
        if getattr(request, "htmx", False):
            return render(request, "common/_refused.html", {"message": exception.message}, status=409)
        back = request.headers.get("referer", "")
        if request.method == "POST" and back.startswith(f"{request.scheme}://{request.get_host()}/"):
            messages.error(request, exception.message)
            return redirect(back)
        return render(request, "common/refused.html", {"message": exception.message}, status=409)


class SecureCookiesMiddleware:
    """A cookie that was set over TLS is sent over TLS only, also where the console answers on loopback without it."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        """Mark the cookies of the answer."""
        response = self.get_response(request)
        if request.is_secure():
            for cookie in response.cookies.values():
                cookie["secure"] = True
        return response
