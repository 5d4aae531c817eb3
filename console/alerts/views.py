"""Pages of alerts: what is open, one alert, rules with their preview, channels."""

from typing import Any

from django.core.paginator import Paginator
from django.db.models import Case, IntegerField, QuerySet, Value, When
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils import timezone
from django.utils.translation import gettext as _
from django.views.decorators.http import require_GET, require_http_methods, require_POST

from console.access import policies
from console.access.policies import Action
from console.alerts import preview as previews
from console.alerts import services
from console.alerts.conditions import CONDITIONS
from console.alerts.evaluation import ensure_defaults
from console.alerts.forms import ChannelForm, RuleForm, SilenceForm
from console.alerts.models import Alert, Channel, Delivery, Rule, Silence
from console.common.errors import Refused
from console.common.models import StateChange
from console.jobs.asking import ask

PAGE_SIZE = 50
SHOWN_OPEN = 10


WORST_FIRST = Case(
    When(severity="critical", then=Value(0)),
    When(severity="warning", then=Value(1)),
    default=Value(2),
    output_field=IntegerField(),
)


def _alerts(user: Any) -> QuerySet[Alert]:
    return policies.visible(user, Alert.objects.select_related("rule", "deployment", "host", "acknowledged_by"))


@require_GET
def alert_list(request: HttpRequest) -> HttpResponse:
    """What is open, worst first, and what was."""
    rows = _alerts(request.user)
    living = list(rows.exclude(state="closed").order_by(WORST_FIRST, "-opened_at")[:200])
    page = Paginator(rows.filter(state="closed").order_by("-closed_at"), PAGE_SIZE).get_page(request.GET.get("page"))
    now = timezone.now()
    silences = policies.visible(request.user, Silence.objects.filter(ends_at__gt=now)).select_related(
        "rule", "deployment", "host", "author"
    )
    return render(
        request, "alerts/list.html", {"living": living, "page": page, "silences": silences, "truth": _truth(living)}
    )


@require_GET
def open_alerts(request: HttpRequest) -> HttpResponse:
    """The part of the overview that shows what is open; empty if nothing is."""
    living = _alerts(request.user).exclude(state="closed").order_by(WORST_FIRST, "-opened_at")
    return render(request, "alerts/_open.html", {"living": living[:SHOWN_OPEN], "count": living.count()})


def _truth(living: list[Alert]) -> str:
    if not living:
        return _("Nothing needs your attention.")
    critical = sum(alert.severity == "critical" for alert in living)
    waiting = sum(alert.state == "open" and not alert.silenced for alert in living)
    return _("%(count)d open, %(critical)d of them critical; %(waiting)d wait for someone to take care.") % {
        "count": len(living),
        "critical": critical,
        "waiting": waiting,
    }


@require_GET
def alert_detail(request: HttpRequest, pk: int) -> HttpResponse:
    """One alert: what, since when, why, what was sent to whom."""
    alert = policies.get(request.user, _alerts(request.user), Action.VIEW, pk=pk)
    changes = StateChange.objects.filter(kind="alerts.alert", object_id=pk).select_related("actor").order_by("at")
    deliveries = Delivery.objects.filter(alerts=alert).select_related("channel").order_by("pk")
    context = {
        "alert": alert,
        "changes": changes,
        "deliveries": deliveries,
        "condition": CONDITIONS.get(alert.rule.condition),
    }
    return render(request, "alerts/detail.html", context)


@require_http_methods(["GET", "POST"])
def alert_acknowledge(request: HttpRequest, pk: int) -> HttpResponse:
    """Take care of an alert."""
    alert = policies.get(request.user, Alert.objects.select_related("rule"), Action.OPERATE, pk=pk)
    context = {
        "title": _("Acknowledge"),
        "heading": _("Take care of “%s”?") % alert,
        "consequences": [
            _("It stays open until it is over; it is no longer escalated."),
            _("Others see that you are at it."),
        ],
        "button": _("Acknowledge"),
        "back": f"/alerts/{pk}/",
    }

    def act(user: Any, reason: str) -> None:
        services.acknowledge(alert, actor=user, reason=reason)

    return ask(request, context, act, then="alert_list")


@require_http_methods(["GET", "POST"])
def alert_silence(request: HttpRequest, pk: int) -> HttpResponse:
    """Keep alerts like this one quiet for a while."""
    alert = policies.get(
        request.user, Alert.objects.select_related("rule", "deployment", "host"), Action.OPERATE, pk=pk
    )
    form = SilenceForm(request.POST or None, alert=alert)
    if request.method == "POST" and form.is_valid():
        data = form.cleaned_data
        actor, whole = policies.require(request.user, Action.OPERATE), data.get("whole", False)
        services.silence(alert, hours=float(data["hours"]), whole=whole, actor=actor, reason=data["reason"])
        return redirect("alert_detail", pk=pk)
    return render(request, "alerts/silence.html", {"alert": alert, "form": form}, status=400 if form.errors else 200)


@require_POST
def silence_end(request: HttpRequest, pk: int) -> HttpResponse:
    """End a silence now."""
    silenced = policies.get(request.user, Silence.objects.all(), Action.OPERATE, pk=pk)
    services.end_silence(silenced, actor=policies.require(request.user, Action.OPERATE))
    return redirect("alert_list")


@require_GET
def rule_list(request: HttpRequest) -> HttpResponse:
    """All rules."""
    user = policies.require(request.user, Action.VIEW)
    ensure_defaults(user.team)
    rules = list(policies.visible(user, Rule.objects.select_related("deployment")).order_by("-enabled", "name"))
    living = set(policies.visible(user, Alert.objects.exclude(state="closed")).values_list("rule_id", flat=True))
    rows = [(rule, CONDITIONS.get(rule.condition), rule.pk in living) for rule in rules]
    return render(request, "alerts/rules.html", {"rows": rows})


@require_http_methods(["GET", "POST"])
def rule_edit(request: HttpRequest, pk: int | None = None) -> HttpResponse:
    """Make or change a rule; beside it, how often it would have fired."""
    user = policies.require(request.user, Action.DEPLOY)
    rule = Rule(team_id=user.team_id) if pk is None else policies.get(user, Rule.objects.all(), Action.DEPLOY, pk=pk)
    form = RuleForm(request.POST or None, instance=rule, user=user)
    if request.method == "POST" and form.is_valid():
        services.change_rule(form.save(commit=False), actor=user)
        return redirect("rule_list")
    context = {"form": form, "rule": rule if pk else None, "conditions": CONDITIONS.values(), "preview": None}
    return render(request, "alerts/rule.html", context, status=400 if form.errors else 200)


@require_POST
def rule_preview(request: HttpRequest) -> HttpResponse:
    """How often the rule in the form would have fired in the last week."""
    user = policies.require(request.user, Action.DEPLOY)
    form = RuleForm(request.POST, user=user, instance=Rule(team_id=user.team_id))
    form.is_valid()
    data = form.cleaned_data
    shown = None
    if data.get("condition") and data.get("threshold") is not None:
        shown = previews.preview(
            int(user.team_id or 0),
            condition=data["condition"],
            threshold=data["threshold"],
            for_seconds=data.get("for_seconds") or 0,
            clear=data.get("clear_threshold"),
            deployment=data.get("deployment"),
        )
    return render(request, "alerts/_preview.html", {"preview": shown})


@require_http_methods(["GET", "POST"])
def rule_delete(request: HttpRequest, pk: int) -> HttpResponse:
    """Delete a rule that a person made."""
    rule = policies.get(request.user, Rule.objects.all(), Action.DEPLOY, pk=pk)
    context = {
        "title": _("Delete %s") % rule,
        "heading": _("Delete %s?") % rule,
        "consequences": [_("Its alerts go with it. This can't be undone.")],
        "button": _("Delete"),
        "danger": True,
        "back": "/alerts/rules/",
    }
    return ask(request, context, lambda user, _reason: services.delete_rule(rule, actor=user), then="rule_list")


@require_GET
def channel_list(request: HttpRequest) -> HttpResponse:
    """All channels, and whether they work."""
    channels = policies.visible(request.user, Channel.objects.all())
    return render(request, "alerts/channels.html", {"channels": channels})


@require_http_methods(["GET", "POST"])
def channel_edit(request: HttpRequest, pk: int | None = None) -> HttpResponse:
    """Make or change a channel."""
    user = policies.require(request.user, Action.ADMINISTER)
    channel = (
        policies.get(user, Channel.objects.all(), Action.ADMINISTER, pk=pk) if pk else Channel(team_id=user.team_id)
    )
    form = ChannelForm(request.POST or None, instance=channel, initial=_typed(request))
    if request.method == "POST" and form.is_valid():
        made = form.save(commit=False)
        made.settings = form.settings()
        try:
            services.save_channel(made, secret=form.cleaned_data["secret"], actor=user)
        except Refused as refusal:
            form.add_error(refusal.field if refusal.field in form.fields else None, refusal.message)
        else:
            return redirect("channel_list")
    context = {"form": form, "channel": channel if pk else None}
    return render(request, "alerts/channel.html", context, status=400 if form.errors else 200)


def _typed(request: HttpRequest) -> dict[str, Any]:
    """What was typed before another kind was chosen; never the secret, which goes by POST alone."""
    if "kind" not in request.GET:
        return {}
    given = {name: request.GET[name] for name in ChannelForm.base_fields if name in request.GET and name != "secret"}
    return given | {name: name in request.GET for name in ("for_escalations", "enabled")}


@require_POST
def channel_test(request: HttpRequest, pk: int) -> HttpResponse:
    """Send a test message and say what came of it."""
    channel = policies.get(request.user, Channel.objects.all(), Action.ADMINISTER, pk=pk)
    problem = services.test_channel(channel, actor=policies.require(request.user, Action.ADMINISTER))
    return render(request, "alerts/_tested.html", {"channel": channel, "problem": problem})


@require_http_methods(["GET", "POST"])
def channel_delete(request: HttpRequest, pk: int) -> HttpResponse:
    """Delete a channel."""
    channel = policies.get(request.user, Channel.objects.all(), Action.ADMINISTER, pk=pk)
    context = {
        "title": _("Delete %s") % channel,
        "heading": _("Delete %s?") % channel,
        "consequences": [_("Alerts no longer go there. What it has sent is forgotten.")],
        "button": _("Delete"),
        "danger": True,
        "back": "/alerts/channels/",
    }
    return ask(
        request, context, lambda user, _reason: services.delete_channel(channel, actor=user), then="channel_list"
    )
