"""What rules can be about: how each condition is read off the fleet, and the rules that Slipway brings.

A condition gives one reading for each subject (an instance, a deployment, a host, …). It is over the threshold if its
value is above it, or below it where less is worse. Thresholds are what the metrics mean: KV use is a fraction, not a per cent.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta

from django.urls import reverse
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, gettext_noop

from console.alerts import gateways, rollouts
from console.alerts.foresight import budgets, certificates, keys, predictions
from console.alerts.readings import Condition, Reading, Scene, about_deployment, about_host, about_instance
from console.common.models import StateChange
from console.common.spans import readable_bytes, readable_duration
from console.deployments import brake, current
from console.deployments.models import Deployment, Instance
from console.fleet.models import Host
from console.jobs.models import Step
from workers.host_facts import Gpu, facts_of, live_of

BEFORE_ALERTS_SECONDS = 3600


def _of_instances(name: str, text: Callable[[float], str]) -> Callable[[Scene], Iterable[Reading]]:
    def read(scene: Scene) -> Iterable[Reading]:
        for instance in scene.instances:
            numbers = scene.currents.get(instance.uuid)
            value = getattr(numbers, name) if numbers else None
            if value is not None:
                yield about_instance(instance, value, text(value))

    return read


def _percent(value: float) -> str:
    return f"{value * 100:.0f} %"


def _errors(scene: Scene) -> Iterable[Reading]:
    for deployment, parts in scene.deployments().items():
        whole = current.together(parts)
        if whole and whole.requests and whole.errors is not None:
            share = whole.errors / whole.requests
            yield about_deployment(deployment, share, _("%s of the last minute's requests failed.") % _percent(share))


def _brake(scene: Scene) -> Iterable[Reading]:
    """Everybody's: it holds for the whole fleet, or not at all."""
    engaged = brake.engaged()
    if engaged and scene.hosts:
        summary = _("Slipway restarts and ends nothing by itself, since %(why)s.") % {"why": engaged.reason}
        yield Reading("brake", _("the fleet"), 1.0, summary, url=reverse("oncall"))


def _against_baseline(scene: Scene) -> Iterable[Reading]:
    for deployment, parts in scene.deployments().items():
        whole = current.together(parts)
        usual = scene.baselines.ttft_p95(deployment)
        if whole and whole.ttft_p95 is not None and usual:
            times = whole.ttft_p95 / usual
            text = _("The first token takes %(now).2f s (p95); usual here is %(usual).2f s.")
            yield about_deployment(deployment, times, text % {"now": whole.ttft_p95, "usual": usual})


def _in_state(*states: str) -> Callable[[Scene], Iterable[Reading]]:
    def read(scene: Scene) -> Iterable[Reading]:
        for instance in scene.instances:
            if instance.state in states and not instance.is_unknown:
                failure = instance.failure or {}
                cause = str(failure.get("message", "")) or instance.state_reason
                yield about_instance(instance, 1.0, _("It is %s.") % instance.look.word, cause)
            else:
                yield about_instance(instance, 0.0, "")

    return read


def _deployment_down(scene: Scene) -> Iterable[Reading]:
    for deployment in Deployment.objects.lasting().filter(
        team_id=scene.team, state__in=("failed", "serving", "degraded")
    ):
        down = deployment.state == "failed"
        summary = _("No instance of it serves.") if down else ""
        yield about_deployment(deployment, float(down), summary, deployment.state_reason if down else "")


def _restarts(scene: Scene) -> Iterable[Reading]:
    began = scene.now - timedelta(seconds=BEFORE_ALERTS_SECONDS)
    keys = [instance.pk for instance in scene.instances]
    changes = StateChange.objects.filter(
        kind="deployments.instance", object_id__in=keys, after="restarting", at__gte=began
    )
    counts: dict[int, int] = {}
    for key in changes.values_list("object_id", flat=True):
        counts[key] = counts.get(key, 0) + 1
    for instance in scene.instances:
        number = counts.get(instance.pk, 0)
        yield about_instance(
            instance, number, _("It was restarted %d times within an hour.") % number, instance.state_reason
        )


def _offline(scene: Scene) -> Iterable[Reading]:
    for host in scene.hosts:
        heard = max(moment for moment in (host.last_seen_at, scene.reading_since) if moment)
        silent = (scene.now - heard).total_seconds()
        running = sum(instance.host_id == host.pk for instance in scene.instances)
        text = _("Nothing was heard of it for %(span)s; %(count)d instances there are unknown.") % {
            "span": readable_duration(silent),
            "count": running,
        }
        yield about_host(host, silent, text)


def _disk(scene: Scene) -> Iterable[Reading]:
    for host in scene.hosts:
        disks = ((host.vitals.get("disk_total"), host.vitals.get("disk_free")), host.models_disk)
        known = [(free / total, total, free) for total, free in disks if total and free is not None]
        if host.is_online and known:
            share, total, free = min(known)  # its models may lie on a disk of their own
            text = _("%(free)s of %(total)s are free.") % {"free": readable_bytes(free), "total": readable_bytes(total)}
            yield about_host(host, share, text)


def _gpus(scene: Scene) -> Iterable[tuple[Host, Gpu]]:
    for host in scene.hosts:
        live = live_of(host.vitals) if host.is_online else None
        for gpu in live.gpus.gpus if live else ():
            yield host, gpu


def _hot(scene: Scene) -> Iterable[Reading]:
    for host, gpu in _gpus(scene):
        if gpu.temperature_c is not None:
            text = _("GPU %(index)d is at %(degrees)d °C.") % {"index": gpu.index, "degrees": gpu.temperature_c}
            held = ", ".join(gpu.slowdowns)
            cause = _("Its clocks are held down: %s") % held if held else ""
            yield about_host(host, gpu.temperature_c, text, part=f"gpu{gpu.number}", cause=cause)


def _strangers(scene: Scene) -> Iterable[Reading]:
    for host, gpu in _gpus(scene):
        strangers = [process for process in gpu.processes if not process.instance and process.memory]
        taken = sum(process.memory or 0 for process in strangers)
        text = _("%(size)s of GPU %(index)d belong to processes that Slipway did not start.") % {
            "size": readable_bytes(taken),
            "index": gpu.index,
        }
        names = ", ".join(f"{process.name or '?'} (pid {process.pid})" for process in strangers[:5])
        yield about_host(host, taken / gpu.memory_total, text, part=f"gpu{gpu.number}", cause=names)


def _xids(scene: Scene) -> Iterable[Reading]:
    """Xid errors of the last hour. The host's clock wrote them; its measured skew is taken off."""
    for host in scene.hosts:
        facts = facts_of(host.facts)
        if facts is None or not host.is_online:
            continue
        began = scene.now.timestamp() - BEFORE_ALERTS_SECONDS + (host.clock_skew_seconds or 0.0)
        recent = [event for event in facts.xid.events if event.at >= began]
        text = _("The driver has reported %d errors within an hour.") % len(recent)
        cause = f"Xid {recent[-1].code} {recent[-1].bus_id}: {recent[-1].text}" if recent else ""
        yield about_host(host, len(recent), text, part="xid", cause=cause)


def _download_rate(scene: Scene) -> Iterable[Reading]:
    steps = Step.objects.filter(state="running", kind="download", host__team_id=scene.team)
    for step in steps.select_related("host", "job"):
        if step.host.is_online and not step.progress.get("waiting_for"):
            url = reverse("job_detail", args=[step.job_id])
            text = _("No bytes arrive.")
            rate = float(step.progress.get("rate") or 0.0)
            yield Reading(f"step:{step.pk}", str(step.job.title), rate, text, "", url, None, step.host_id)


def _channels(scene: Scene) -> Iterable[Reading]:
    from console.alerts.models import Channel

    for channel in Channel.objects.filter(team_id=scene.team, enabled=True):
        silent = (scene.now - channel.failing_since).total_seconds() if channel.failing_since else 0.0
        text = _("Alerts can't be sent through it: %s") % channel.last_error
        yield Reading(f"channel:{channel.pk}", channel.name, silent, text, "", reverse("channel_list"))


CONDITIONS: Mapping[str, Condition] = {
    one.key: one
    for one in (
        Condition(
            "kv_usage",
            gettext_lazy("KV cache in use"),
            gettext_lazy("share"),
            _of_instances("kv_usage", lambda value: _("%s of the KV cache is in use.") % _percent(value)),
            gettext_lazy("A share from 0 to 1. A full cache makes requests wait, then preempts them."),
            measure="kv_cache_usage",
        ),
        Condition(
            "waiting",
            gettext_lazy("Requests waiting"),
            gettext_lazy("requests"),
            _of_instances("waiting", lambda value: _("%d requests wait for the engine.") % value),
            measure="requests_waiting",
        ),
        Condition(
            "queue_wait",
            gettext_lazy("Wait in the queue, p95"),
            gettext_lazy("seconds"),
            _of_instances("queue_p95", lambda value: _("Requests wait %.1f s (p95) before they begin.") % value),
            measure="queue_wait.p95",
        ),
        Condition(
            "preemptions",
            gettext_lazy("Preemptions"),
            "/s",
            _of_instances("preemptions", lambda value: _("%.2f requests a second lose their KV blocks.") % value),
            gettext_lazy("They are computed again later: the KV cache is too small for this load."),
            measure="preemptions",
        ),
        Condition(
            "kv_offload",
            gettext_lazy("Offloaded KV cache in use"),
            gettext_lazy("share"),
            _of_instances("kv_offload", lambda value: _("%s of the offloaded KV cache is in use.") % _percent(value)),
            measure="kv_offload_usage",
        ),
        Condition(
            "acceptance",
            gettext_lazy("Speculative acceptance"),
            gettext_lazy("share"),
            _of_instances(
                "acceptance", lambda value: _("Only %s of the drafted tokens are accepted.") % _percent(value)
            ),
            gettext_lazy("Below, drafting costs more than it brings."),
            below=True,
            measure="spec_acceptance_share",
        ),
        Condition(
            "ttft_times",
            gettext_lazy("First token against its own baseline"),
            gettext_lazy("times"),
            _against_baseline,
            gettext_lazy("The last minute's p95 over the p95 of the last day."),
        ),
        Condition(
            "error_share", gettext_lazy("Failed requests"), gettext_lazy("share"), _errors, measure="error_share"
        ),
        Condition(
            "hung",
            gettext_lazy("Instance unhealthy or hung"),
            "state",
            _in_state("unhealthy"),
            state_of=(Instance, "unhealthy"),
        ),
        Condition(
            "crashed", gettext_lazy("Instance crashed"), "state", _in_state("crashed"), state_of=(Instance, "crashed")
        ),
        Condition(
            "down", gettext_lazy("Deployment failed"), "state", _deployment_down, state_of=(Deployment, "failed")
        ),
        Condition("restarts", gettext_lazy("Restarts within an hour"), gettext_lazy("restarts"), _restarts),
        Condition("offline", gettext_lazy("Host silent"), gettext_lazy("seconds"), _offline),
        Condition("disk_free", gettext_lazy("Disk free"), gettext_lazy("share"), _disk, below=True),
        Condition("hot", gettext_lazy("Device temperature"), "°C", _hot),
        Condition("xid", gettext_lazy("Xid errors within an hour"), gettext_lazy("errors"), _xids),
        Condition("strangers", gettext_lazy("Device memory of strangers"), gettext_lazy("share"), _strangers),
        Condition("download_rate", gettext_lazy("Download rate"), "bytes/s", _download_rate, below=True),
        Condition(
            "key_days",
            gettext_lazy("Days until an API key ends"),
            gettext_lazy("days"),
            keys,
            gettext_lazy(
                "Keys in use that no other key replaces yet. One that has ended is no trouble any more but a fact."
            ),
            below=True,
        ),
        Condition(
            "certificate_days",
            gettext_lazy("Days until a certificate ends"),
            gettext_lazy("days"),
            certificates,
            gettext_lazy("Of the gateway, of the address for other machines, of the authority that hosts trust."),
            below=True,
        ),
        Condition(
            "budget",
            gettext_lazy("Daily token budget used"),
            gettext_lazy("share"),
            budgets,
            gettext_lazy("Of an API key or of the whole team, prompt and answer together; the day is UTC’s."),
        ),
        Condition(
            "prediction",
            gettext_lazy("Memory prediction off"),
            gettext_lazy("share"),
            predictions,
            gettext_lazy("Planned against measured, of the latest start of each deployment."),
        ),
        Condition("rolled_back", gettext_lazy("Rollout rolled back"), gettext_lazy("state"), rollouts.rolled_back),
        Condition("rollout_held", gettext_lazy("Rollout on hold"), gettext_lazy("state"), rollouts.waiting),
        Condition("gateway", gettext_lazy("Gateway silent, down or behind"), gettext_lazy("state"), gateways.troubled),
        Condition(
            "brake",
            gettext_lazy("Brake engaged"),
            gettext_lazy("state"),
            _brake,
            gettext_lazy("Much of the fleet turned bad at once, so nothing is done by machine until it is calm."),
        ),
        Condition("channel", gettext_lazy("Alert channel dead"), gettext_lazy("seconds"), _channels),
    )
}


@dataclass(frozen=True)
class Default:
    """A rule that Slipway brings."""

    key: str
    name: str
    condition: str
    threshold: float
    for_seconds: int
    severity: str


DEFAULTS: tuple[Default, ...] = (
    Default("kv-high", gettext_noop("KV cache nearly full"), "kv_usage", 0.90, 30, "warning"),
    Default("kv-full", gettext_noop("KV cache full"), "kv_usage", 0.95, 120, "critical"),
    Default("waiting", gettext_noop("Many requests wait"), "waiting", 100, 60, "warning"),
    Default("queue-wait", gettext_noop("Long wait in the queue"), "queue_wait", 5, 60, "warning"),
    Default("preemptions", gettext_noop("Requests are preempted"), "preemptions", 0.1, 120, "warning"),
    Default("kv-offload", gettext_noop("Offloaded KV cache in use"), "kv_offload", 0.0, 60, "info"),
    Default("acceptance", gettext_noop("Few drafted tokens accepted"), "acceptance", 0.3, 300, "warning"),
    Default("ttft-baseline", gettext_noop("First token slower than usual"), "ttft_times", 2, 120, "warning"),
    Default("errors", gettext_noop("Requests fail"), "error_share", 0.05, 60, "critical"),
    Default("hung", gettext_noop("Instance hung"), "hung", 0.5, 0, "critical"),
    Default("crashed", gettext_noop("Instance crashed"), "crashed", 0.5, 0, "critical"),
    Default("down", gettext_noop("Deployment failed"), "down", 0.5, 0, "critical"),
    Default("restarts", gettext_noop("Instance restarts again and again"), "restarts", 2, 0, "warning"),
    Default("offline", gettext_noop("Host offline"), "offline", 60, 0, "critical"),
    Default("disk", gettext_noop("Disk nearly full"), "disk_free", 0.10, 60, "warning"),
    Default("hot", gettext_noop("Device hot"), "hot", 85, 60, "warning"),
    Default("xid", gettext_noop("GPU reports errors"), "xid", 0, 0, "critical"),
    Default("strangers", gettext_noop("Device memory taken by strangers"), "strangers", 0.05, 60, "warning"),
    Default("stalled", gettext_noop("Download stalled"), "download_rate", 1, 300, "warning"),
    Default("key-ends", gettext_noop("API key ends soon"), "key_days", 7, 0, "warning"),
    Default("certificate-ends", gettext_noop("Certificate ends soon"), "certificate_days", 14, 0, "critical"),
    Default("budget", gettext_noop("Daily token budget nearly used"), "budget", 0.9, 0, "warning"),
    Default("prediction", gettext_noop("Memory prediction far off"), "prediction", 0.10, 0, "info"),
    Default("rolled-back", gettext_noop("Rollout rolled back"), "rolled_back", 0.5, 0, "warning"),
    Default("rollout-held", gettext_noop("Rollout waits for a person"), "rollout_held", 0.5, 0, "warning"),
    Default("gateway", gettext_noop("Gateway in trouble"), "gateway", 0.5, 60, "critical"),
    Default("brake", gettext_noop("Automatic actions stopped"), "brake", 0.5, 0, "critical"),
    Default("channel", gettext_noop("Alert channel dead"), "channel", 0, 0, "critical"),
)
