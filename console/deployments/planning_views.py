"""Pages about planning: predictions against truth, where a model fits, the device catalogue, rolling back."""

from typing import Any

from django.core.paginator import Paginator
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.utils.translation import gettext as _
from django.views.decorators.http import require_GET, require_http_methods, require_POST

from console.access import policies
from console.access.models import User
from console.access.policies import Action
from console.catalog.models import Model
from console.common.errors import Refused
from console.deployments import changes, device_catalogue, fits_where, measurements
from console.deployments.charts import prediction_errors
from console.deployments.device_forms import DeviceKindForm
from console.deployments.models import DeviceKind, Launch
from console.deployments.views import find
from console.fleet.models import Host
from console.jobs.asking import ask
from console.jobs.models import Job

PAGE_SIZE = 50
CONTEXTS = (4_096, 8_192, 16_384, 32_768, 65_536, 131_072)


@require_GET
def prediction_list(request: HttpRequest) -> HttpResponse:
    """How far predictions were off, over all launches."""
    policies.require(request.user, Action.VIEW)
    rows = policies.visible(
        request.user,
        Launch.objects.select_related("revision__model", "attempt__instance"),
        team_path="revision__model__team",
    )
    page = Paginator(rows, PAGE_SIZE).get_page(request.GET.get("page"))
    launches = [{"launch": launch, "lines": measurements.lines(launch)} for launch in page]
    context = {"page": page, "launches": launches, "chart": prediction_errors(list(rows[:200]))}
    return render(request, "deployments/predictions.html", context)


@require_GET
def model_fits(request: HttpRequest, pk: int) -> HttpResponse:
    """The table of places for a model, as a part of its page."""
    model = policies.get(request.user, Model.objects.all(), Action.VIEW, pk=pk)
    revisions = list(model.revisions.order_by("-created_at"))
    revision = next((one for one in revisions if one.shape), revisions[0] if revisions else None)
    chosen = request.GET.get("context", "")
    context: dict[str, Any] = {"model": model, "revision": revision, "contexts": CONTEXTS}
    try:
        if revision is None:
            raise ValueError(_("This model has no revision yet."))  # noqa: TRY301 - one place says why there is no table
        hosts = policies.visible(request.user, Host.objects.all())
        places, planned = fits_where.places(
            revision, hosts, context=int(chosen) if chosen.isdigit() and int(chosen) else None
        )
        context |= {"places": places, "planned": planned}
    except ValueError as error:
        context["trouble"] = str(error)
    return render(request, "deployments/_fits_where.html", context)


@require_GET
def device_list(request: HttpRequest) -> HttpResponse:
    """The catalogue of devices that planning knows."""
    policies.require(request.user, Action.VIEW)
    edited = {row.key: row for row in DeviceKind.objects.select_related("changed_by")}
    rows = [
        {"device": one, "edit": edited.get(one.key), "builtin": device_catalogue.is_builtin(one.key)}
        for one in device_catalogue.catalogue()
    ]
    return render(request, "deployments/devices.html", {"rows": rows})


@require_http_methods(["GET", "POST"])
def device_edit(request: HttpRequest, key: str = "") -> HttpResponse:
    """Change a kind of device, or add one."""
    user = policies.require(request.user, Action.ADMINISTER)
    device = device_catalogue.find(key) if key else None
    if key and device is None:
        return redirect("device_list")
    initial = DeviceKindForm.texts_of(device) if device else {"vendor": "nvidia", "overhead_class": "datacenter"}
    form = DeviceKindForm(request.POST or None, initial=initial)
    if device is not None:
        form.fields["key"].disabled = True
    if request.method == "POST" and form.is_valid():
        if device is None and device_catalogue.find(form.cleaned_data["key"]):
            form.add_error("key", _("There is a device with this name already."))
        else:
            device_catalogue.save(form.cleaned_data["key"], form.facts(), actor=user)
            return redirect("device_list")
    context = {"form": form, "device": device, "edited": DeviceKind.objects.filter(key=key).exists(),
               "builtin": device_catalogue.is_builtin(key)}  # fmt: skip
    return render(request, "deployments/device_edit.html", context, status=400 if form.errors else 200)


@require_POST
def device_reset(request: HttpRequest, key: str) -> HttpResponse:
    """Take an edit back, or remove a kind that was added."""
    user = policies.require(request.user, Action.ADMINISTER)
    get_object_or_404(DeviceKind, key=key)
    device_catalogue.reset(key, actor=user)
    return redirect("device_list")


@require_http_methods(["GET", "POST"])
def deployment_roll_back(request: HttpRequest, pk: int, number: int) -> HttpResponse:
    """Apply an older spec again; what that will do is said first."""
    deployment = find(request.user, pk, Action.DEPLOY)
    spec = changes.spec_of(deployment, number)
    try:
        sentences = list(changes.effect(deployment, changes.Wish.of_spec(spec)).sentences)
    except Refused as refusal:
        sentences = [refusal.message]
    context = {
        "title": _("Back to spec %(number)d") % {"number": number},
        "heading": _("Bring %(name)s back to spec %(number)d?") % {"name": deployment, "number": number},
        "consequences": [*sentences, _("It becomes a new spec with the content of the old one; nothing is erased.")],
        "button": _("Roll back"),
        "back": f"{reverse('deployment_specs', args=[pk])}?to={number}",
    }

    def act(user: User, reason: str) -> Job | None:
        return changes.roll_back(deployment, number, reason=reason, actor=user)

    return ask(request, context, act, then="deployment_list")
