"""A deployment's tab of benchmarks: its history, its gate, and the choice of a baseline."""

from dataclasses import replace
from typing import Any

from django import forms
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from django.views.decorators.http import require_GET, require_http_methods

from console.access import policies
from console.access import services as access
from console.access.policies import Action
from console.benchmarks import charts, gates, views
from console.benchmarks.curves import points
from console.benchmarks.forms import LoadFields, initial_of
from console.benchmarks.gates import Gate, Limits
from console.benchmarks.models import Baseline, Benchmark
from console.common.errors import Refused
from console.common.forms import add_refusal
from console.common.parts import confirmation
from console.deployments import changes
from console.deployments import views as deployments
from console.deployments.changes import Wish

SHOWN = 20


def _percent(label: Any, initial: int, *, most: int = 100) -> forms.FloatField:
    return forms.FloatField(label=label, min_value=0, max_value=most, initial=initial)


class GateForm(LoadFields):
    """What a new engine must show before it gets traffic."""

    ttft_worse = _percent(gettext_lazy("First token p95 may be slower by, in %"), 25, most=1000)
    throughput_worse = _percent(gettext_lazy("Tokens per second may be fewer by, in %"), 15)
    goodput_worse = _percent(gettext_lazy("Goodput may be less by, in %"), 10)
    failed_most = _percent(gettext_lazy("Requests that may fail, in %"), 2)
    reason = forms.CharField(label=gettext_lazy("Reason"), max_length=300)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # A gate compares load with load; two searches would end at different ones.
        self.fields["search"].choices = [("fixed", "fixed")]  # type: ignore[attr-defined]
        self.fields["search"].widget = forms.HiddenInput()

    def gate(self) -> Gate:
        """The gate that was described."""
        data, question = self.cleaned_data, self.question()
        fields = {
            "ttft_p95": "ttft_worse", "throughput": "throughput_worse", "goodput": "goodput_worse", "errors": "failed_most",
        }  # fmt: skip
        return Gate(
            profile=question.profile,
            workload=question.workload,
            loads=question.loads,
            targets=question.targets,
            limits=Limits(**{limit: data[field] / 100 for limit, field in fields.items()}),
        )


def _initial(gate: Gate | None) -> dict[str, Any]:
    if gate is None:
        loads = gates.USUAL_LOADS
        values = ", ".join(f"{load:g}" for load in loads.values)
        return {"values": values, **{name: getattr(loads, name) for name in ("requests", "repeats", "warmups")}}
    stored = Benchmark(profile=gate.profile, workload=gate.workload.model_dump(), loads=gate.loads.model_dump(),
                       targets=gate.targets.model_dump(), tags=[])  # fmt: skip
    limits = gate.limits
    return initial_of(stored) | {
        "ttft_worse": 100 * limits.ttft_p95, "throughput_worse": 100 * limits.throughput,
        "goodput_worse": 100 * limits.goodput, "failed_most": 100 * limits.errors,
    }  # fmt: skip


@require_GET
def deployment_benchmarks(request: HttpRequest, pk: int) -> HttpResponse:
    """History with changes marked, the gate that is in force, and what the gate refused."""
    deployment = deployments.find(request.user, pk, Action.VIEW)
    whole = gates.history(deployment)
    curves = {one.pk: points(one.runs.defer("raw", "requests")) for one in whole[-SHOWN * 2 :]}
    rows = policies.visible(request.user, views.rows()).filter(deployment=deployment).order_by("-pk")[:SHOWN]
    context = deployments.frame(deployment, "benchmarks") | {
        "gate": gates.gate_of(deployment),
        "chart": charts.history([one for one in whole if one.pk in curves], curves),
        "rows": rows,
        "baselines": set(
            Baseline.objects.filter(benchmark__deployment=deployment).values_list("benchmark_id", flat=True)
        ),
        "ready": deployment.instances.filter(state="ready").first(),
    }
    return render(request, "benchmarks/deployment.html", context)


@require_http_methods(["GET", "POST"])
def gate_edit(request: HttpRequest, pk: int) -> HttpResponse:
    """Describe the gate of a deployment's next specs, or take it away. Nothing is restarted."""
    deployment = deployments.find(request.user, pk, Action.DEPLOY)
    user = policies.require(request.user, Action.DEPLOY)
    gate = gates.gate_of(deployment)
    form = GateForm(request.POST or None, initial=_initial(gate))
    if request.method == "POST" and form.is_valid():
        wanted = {} if "remove" in request.POST else form.gate().model_dump(mode="json")
        try:
            _apply(deployment, wanted, reason=form.cleaned_data["reason"], user=user)
        except Refused as refusal:
            add_refusal(form, refusal)
        else:
            return redirect("deployment_benchmarks", pk=pk)
    context = deployments.frame(deployment, "benchmarks") | {"form": form, "gate": gate, "profiles": views.profiles()}
    return render(request, "benchmarks/gate.html", context, status=400 if form.errors else 200)


def _apply(deployment: Any, wanted: dict[str, Any], *, reason: str, user: Any) -> None:
    spec = deployment.current_spec
    if spec is None:
        raise Refused(_("%(name)s has no spec yet.") % {"name": deployment})
    changes.change(deployment, replace(Wish.of_spec(spec), gate=wanted), reason=reason, actor=user)


@require_http_methods(["GET", "POST"])
def baseline_choose(request: HttpRequest, pk: int) -> HttpResponse:
    """Let gates judge by this benchmark from now on."""
    benchmark = views.find(request.user, pk, Action.DEPLOY)
    context = {
        "title": _("Make it the baseline"),
        "heading": _("Judge by “%s” from now on?") % benchmark,
        "consequences": [
            _("Gates that ask the same of this model, device, engine and arguments compare with it."),
            _("The one that stood before stays in the list."),
        ],
        "button": _("Make it the baseline"),
        "back": f"/benchmarks/{pk}/",
    }
    if request.method == "POST":
        user = policies.require(request.user, Action.DEPLOY)
        try:
            gates.make_baseline(benchmark, actor=user)
        except Refused as refusal:
            return confirmation(request, context | {"refused": str(refusal)})
        access.record(actor=user, action="benchmark.baseline", target=benchmark.title, target_url=f"/benchmarks/{pk}/")
        return redirect("benchmark_detail", pk=pk)
    return confirmation(request, context)
