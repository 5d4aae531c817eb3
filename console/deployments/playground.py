"""The playground: chat with a ready deployment, streamed through the console."""

import json
from collections.abc import AsyncIterator
from typing import Any

from channels.db import database_sync_to_async
from django.db.models import Exists, OuterRef
from django.http import HttpRequest, HttpResponse, HttpResponseBase, JsonResponse, StreamingHttpResponse
from django.shortcuts import render
from django.utils.translation import gettext as _
from django.views.decorators.http import require_GET, require_POST
from pydantic import ValidationError

from console.access import policies
from console.access.policies import Action
from console.deployments import chat, services
from console.deployments.models import Deployment, Instance

LARGEST_BODY = 2 * 1024 * 1024


@require_GET
def playground(request: HttpRequest) -> HttpResponse:
    """Choose a ready deployment and talk to it."""
    policies.require(request.user, Action.OPERATE)
    ready = Instance.objects.filter(deployment=OuterRef("pk"), state="ready")
    rows = policies.visible(request.user, Deployment.objects.lasting()).filter(Exists(ready)).order_by("name")
    deployments = list(rows.select_related("current_spec__copy__revision__model"))
    chosen = request.GET.get("deployment", "")
    shown = next((one for one in deployments if str(one.pk) == chosen), deployments[0] if deployments else None)
    return render(request, "deployments/playground.html", {"deployments": deployments, "deployment": shown})


@require_POST
async def playground_chat(request: HttpRequest, pk: int) -> HttpResponseBase:
    """Stream one answer as server-sent events. When the browser goes away, so does the request to the engine."""
    endpoint = await _endpoint(request, pk)
    body = request.body
    if len(body) > LARGEST_BODY:
        return JsonResponse(
            {"error": {"message": _("The conversation is too long. Clear it and start anew.")}}, status=413
        )
    try:
        conversation = chat.Conversation.model_validate_json(body)
    except ValidationError as problem:
        first = problem.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        return JsonResponse({"error": {"message": f"{where}: {first['msg']}"}}, status=400)
    if endpoint is None:
        message = _("No instance is ready at the moment. Look at the deployment's page for the reason.")
        return JsonResponse({"error": {"message": message}}, status=409)
    response = StreamingHttpResponse(_sse(chat.stream(endpoint, conversation)), content_type="text/event-stream")
    response["Cache-Control"] = "no-store"
    response["X-Accel-Buffering"] = "no"
    return response


@database_sync_to_async  # type: ignore[untyped-decorator]
def _endpoint(request: HttpRequest, pk: int) -> services.Endpoint | None:
    # The connection goes back to its pool here, not at the end of an answer that may take minutes.
    deployment: Deployment = policies.get(request.user, Deployment.objects.all(), Action.OPERATE, pk=pk)
    return services.endpoint(deployment)


async def _sse(events: AsyncIterator[dict[str, Any]]) -> AsyncIterator[bytes]:
    async for event in events:
        yield f"data: {json.dumps(event, ensure_ascii=False)}\n\n".encode()
