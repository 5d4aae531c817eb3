"""Pages that start a job on a host: install an engine."""

from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils.translation import gettext as _
from django.views.decorators.http import require_http_methods

from console.access import policies
from console.access.policies import Action
from console.common.errors import Refused
from console.common.forms import add_refusal
from console.fleet.models import Host
from console.jobs import host_jobs
from console.jobs.host_forms import InstallEngineForm


def _hosts(request: HttpRequest) -> QuerySet[Host]:
    """Hosts that have joined: only they can be given work."""
    return policies.visible(request.user, Host.objects.exclude(public_key=""))


@require_http_methods(["GET", "POST"])
def engine_install(request: HttpRequest) -> HttpResponse:
    """Ask which version for which host, start the job, and go to its page."""
    actor = policies.require(request.user, Action.DEPLOY)
    hosts = _hosts(request)
    form = InstallEngineForm(request.POST or None, hosts=hosts, initial=_initial(request))
    if request.method == "POST" and form.is_valid():
        try:
            job = host_jobs.install_engine(
                form.cleaned_data["host"],
                distribution=form.cleaned_data["distribution"],
                version=form.cleaned_data["version"],
                actor=actor,
                idempotency_key=form.cleaned_data["idempotency_key"],
            )
        except Refused as refusal:
            add_refusal(form, refusal)
        else:
            return redirect("job_detail", pk=job.pk)
    context = {
        "form": form,
        "hosts": hosts.exists(),
        "title": _("Install an engine"),
        "text": _(
            "A vLLM version in an environment of its own. Deployments choose among the versions that their host has."
        ),
        "back": reverse("engine_list"),
        "back_label": _("Engines"),
        "button": _("Install"),
    }
    return render(request, "fleet/host_job_form.html", context, status=400 if form.errors else 200)


def _initial(request: HttpRequest) -> dict[str, str]:
    host = request.GET.get("host", "")
    return {"host": host} if host.isascii() and host.isdigit() else {}
