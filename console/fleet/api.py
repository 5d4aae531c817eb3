"""What a host asks the console for by HTTP before it has credentials of its own: to join, and what it needs for that.

The script, the wheel and the certificate authority are Slipway's own open code and a public key: nobody has to sign in for
them, and whoever fetches them checks a hash that came another way.
"""

import hashlib
import json
from collections.abc import Callable
from functools import lru_cache
from html import escape
from pathlib import Path
from typing import Any

from django.contrib.auth.decorators import login_not_required
from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_GET, require_POST

from console import env
from console.common.errors import Refused
from console.fleet import host_wheel, joining, services

MAX_BODY_BYTES = 4096
WHEEL_TYPE = "application/octet-stream"


@csrf_exempt  # a host has no session; the one-time token is what authorises it
@login_not_required
@require_POST
def join(request: HttpRequest) -> JsonResponse:
    """Take `{"token", "public_key"}` and answer with the host's credentials, once per token; 4xx with a plain `error`."""
    return answer_to_join(request, _credentials)


def answer_to_join(request: HttpRequest, let_in: Callable[[str, str], dict[str, Any]]) -> JsonResponse:
    """Read token and public key, and answer with what `let_in` gives for them; the same for hosts and gateways."""
    try:
        asked = json.loads(request.read(MAX_BODY_BYTES))
        token, public_key = str(asked["token"]), str(asked["public_key"])
    except (ValueError, KeyError, TypeError):
        return JsonResponse({"error": "Send a JSON object with token and public_key."}, status=400)
    try:
        return JsonResponse(let_in(token, public_key))
    except Refused as refused:
        return JsonResponse({"error": refused.message}, status=403)


def _credentials(token: str, public_key: str) -> dict[str, Any]:
    given = services.join(token=token, public_key=public_key)
    return {
        "host": given.host,
        "redis_url": given.redis_url,
        "console_url": given.console_url,
        "console_ca": given.console_ca,
        "broker_ca": given.broker_ca,
        "port_range": [given.port_first, given.port_last],
    }


@login_not_required
@require_GET
def bootstrap(request: HttpRequest) -> HttpResponse:  # noqa: ARG001
    """The script that the join command runs; its SHA-256 stands in that command."""
    return HttpResponse(host_wheel.script(), content_type="text/x-python; charset=utf-8")


@login_not_required
@require_GET
def certificate_authority(request: HttpRequest) -> HttpResponse:  # noqa: ARG001
    """The console's certificate authority, for whoever knows its fingerprint."""
    pem = joining.console_authority()
    if not pem:
        raise Http404("This console has no certificate authority: other machines can't reach it by TLS of its own.")
    return HttpResponse(pem, content_type="application/x-pem-file")


@login_not_required
@require_GET
def wheels(request: HttpRequest) -> HttpResponse:  # noqa: ARG001
    """All wheels that hosts may install from here, as a page that pip reads (`--find-links`)."""
    own = host_wheel.current()
    found = [(own.name, own.sha256), *((path.name, _sha256_of(path)) for path in _offline_wheels())]
    links = [f'<a href="{escape(name)}#sha256={sha256}">{escape(name)}</a><br>' for name, sha256 in found]
    return HttpResponse("<!DOCTYPE html><html><body>\n" + "\n".join(links) + "\n</body></html>\n")


@login_not_required
@require_GET
def wheel(request: HttpRequest, name: str) -> HttpResponse:  # noqa: ARG001
    """One wheel: the agent's own, or one of the folder for hosts without a package index."""
    own = host_wheel.current()
    if name == own.name:
        return HttpResponse(own.content, content_type=WHEEL_TYPE)
    # Compared with the folder's listing, so that no name can lead out of it.
    path = next((path for path in _offline_wheels() if path.name == name), None)
    if path is None:
        raise Http404(f"There is no wheel {name} here.")
    # Whole: under ASGI a file in parts is read as a whole all the same, with a warning.
    return HttpResponse(path.read_bytes(), content_type=WHEEL_TYPE)


def _offline_wheels() -> list[Path]:
    folder = env.environment().wheels_dir
    return sorted(folder.glob("*.whl")) if folder else []


def _sha256_of(path: Path) -> str:
    facts = path.stat()
    return _hashed(path, facts.st_mtime_ns, facts.st_size)


@lru_cache(maxsize=1024)
def _hashed(path: Path, _changed_ns: int, _size_bytes: int) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
