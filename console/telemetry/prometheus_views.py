"""What Prometheus scrapes. Whoever asks shows the token of SLIPWAY_METRICS_TOKEN, or is signed in."""

from collections.abc import Callable
from functools import wraps
from uuid import UUID

from django.conf import settings
from django.contrib.auth.decorators import login_not_required
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import get_object_or_404
from django.utils.crypto import constant_time_compare
from django.utils.translation import gettext as _
from django.views.decorators.http import require_GET
from prometheus_client import CONTENT_TYPE_LATEST

from console.access import policies
from console.access.policies import Action
from console.deployments.models import Instance
from console.telemetry import exposition

View = Callable[..., HttpResponse]


def for_scrapers(view: View) -> View:
    """Let a scraper in with its token; people of every team's metrics are in it, so people need to administer."""

    @wraps(view)
    def guarded(request: HttpRequest, *args: object, **kwargs: object) -> HttpResponse:
        given = request.headers.get("Authorization", "").removeprefix("Bearer ").strip()
        wanted = settings.ENV.slipway_metrics_token
        if (wanted and given and constant_time_compare(given, wanted)) or policies.can(request.user, Action.ADMINISTER):
            return view(request, *args, **kwargs)
        text = (
            _("Send “Authorization: Bearer TOKEN” with the token of SLIPWAY_METRICS_TOKEN.")
            if wanted
            else _("Set SLIPWAY_METRICS_TOKEN, restart the console, and send it as “Authorization: Bearer TOKEN”.")
        )
        response = HttpResponse(f"{text}\n", status=401, content_type="text/plain; charset=utf-8")
        response["WWW-Authenticate"] = "Bearer"
        return response

    return require_GET(login_not_required(guarded))


@for_scrapers
def console_metrics(_request: HttpRequest) -> HttpResponse:
    """The console's own metrics."""
    return HttpResponse(exposition.of_console(), content_type=CONTENT_TYPE_LATEST)


@for_scrapers
def service_discovery(request: HttpRequest) -> HttpResponse:
    """Every instance with its labels, for `http_sd_configs`."""
    return JsonResponse(exposition.targets(request.get_host(), https=request.is_secure()), safe=False)


@for_scrapers
def instance_metrics(_request: HttpRequest, uuid: UUID) -> HttpResponse:
    """One instance's last sample under vLLM's names; 503 while there is no fresh one."""
    instance = get_object_or_404(Instance.objects.select_related("host"), uuid=uuid)
    sample = exposition.last_sample(instance)
    if sample is None:
        text = _("No sample of the last %(seconds)d s.") % {"seconds": exposition.FRESH_SECONDS}
        return HttpResponse(f"{text}\n", status=503, content_type="text/plain; charset=utf-8")
    return HttpResponse(exposition.of_instance(sample), content_type="text/plain; version=0.0.4; charset=utf-8")
