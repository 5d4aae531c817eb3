"""What a host asks the console for by HTTP before it has credentials of its own: to join."""

import json

from django.contrib.auth.decorators import login_not_required
from django.http import HttpRequest, JsonResponse
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_POST

from console.common.errors import Refused
from console.fleet import services

MAX_BODY_BYTES = 4096


@csrf_exempt  # a host has no session; the one-time token is what authorises it
@login_not_required
@require_POST
def join(request: HttpRequest) -> JsonResponse:
    """Take `{"token", "public_key"}` and answer with the host's credentials, once per token; 4xx with a plain `error`."""
    try:
        asked = json.loads(request.read(MAX_BODY_BYTES))
        token, public_key = str(asked["token"]), str(asked["public_key"])
    except (ValueError, KeyError, TypeError):
        return JsonResponse({"error": "Send a JSON object with token and public_key."}, status=400)
    try:
        credentials = services.join(token=token, public_key=public_key)
    except Refused as refused:
        return JsonResponse({"error": refused.message}, status=403)
    return JsonResponse(
        {
            "host": credentials.host,
            "redis_url": credentials.redis_url,
            "console_url": credentials.console_url,
            "port_range": [credentials.port_first, credentials.port_last],
        }
    )
