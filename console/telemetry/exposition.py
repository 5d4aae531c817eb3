"""What Prometheus reads: the console's own state, each instance's metrics, and where they are found.

Engines listen on their host's loopback address, where no Prometheus reaches them. The console therefore shows each
instance's last sample under an address of its own, with vLLM's newest names, and tells these addresses as targets.
"""

import time
from collections.abc import Iterable, Iterator
from typing import Any, cast
from uuid import UUID

from django.db.models import Count
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from redis.exceptions import RedisError

from console.common.broker import connection
from console.deployments import current
from console.deployments.models import Deployment, Instance
from console.fleet.models import Host
from console.jobs.models import Job
from console.jobs.reconcile import INGEST_PULSE
from workers.contracts import InstanceSample, MetricsBatch, samples_stream

FRESH_SECONDS = 15
"""A sample that is older is not shown: Prometheus then knows that the target is down."""
_GAUGES = {
    "requests_running": "vllm:num_requests_running",
    "requests_waiting": "vllm:num_requests_waiting",
    "kv_cache_usage": "vllm:kv_cache_usage_perc",
    "kv_offload_usage": "vllm:kv_offload_cpu_cache_usage_perc",
    "resident_bytes": "process_resident_memory_bytes",
}
_COUNTERS = {
    "prompt_tokens": "vllm:prompt_tokens_total",
    "cached_prompt_tokens": "vllm:prompt_tokens_cached_total",
    "generation_tokens": "vllm:generation_tokens_total",
    "preemptions": "vllm:num_preemptions_total",
    "prefix_cache_queries": "vllm:prefix_cache_queries_total",
    "prefix_cache_hits": "vllm:prefix_cache_hits_total",
    "spec_draft_tokens": "vllm:spec_decode_num_draft_tokens_total",
    "spec_accepted_tokens": "vllm:spec_decode_num_accepted_tokens_total",
    "corrupted_requests": "vllm:corrupted_requests_total",
}
_HISTOGRAMS = {
    "time_to_first_token": "vllm:time_to_first_token_seconds",
    "inter_token_latency": "vllm:inter_token_latency_seconds",
    "e2e_latency": "vllm:e2e_request_latency_seconds",
    "queue_wait": "vllm:request_queue_time_seconds",
    "request_prompt_tokens": "vllm:request_prompt_tokens",
    "request_generation_tokens": "vllm:request_generation_tokens",
}


class _Console(Collector):
    """The console's own state, read when it is asked for."""

    def collect(self) -> Iterator[Metric]:
        """All families."""
        yield self._states("slipway_deployments", "Deployments by state.", Deployment)
        yield self._states("slipway_instances", "Instances by state.", Instance)
        yield self._states("slipway_jobs", "Jobs by state.", Job)
        hosts = GaugeMetricFamily("slipway_host_up", "1 if the host was heard of within 15 s.", labels=["host"])
        for host in Host.objects.exclude(last_seen_at=None):
            hosts.add_metric([host.name], float(host.is_online))
        yield hosts
        yield from _current()
        yield _ingest()

    @staticmethod
    def _states(name: str, text: str, model: Any) -> Metric:
        family = GaugeMetricFamily(name, text, labels=["state"])
        for row in model.objects.values("state").annotate(number=Count("pk")).order_by("state"):
            family.add_metric([row["state"]], row["number"])
        return family


def _current() -> Iterable[Metric]:
    """What deployments do right now, as the pages show it."""
    instances = Instance.objects.exclude(state="stopped").values_list("uuid", "deployment_id")
    names = dict(Deployment.objects.values_list("pk", "name"))
    numbers = current.by_deployment(dict(instances))
    for field, name, text in (
        ("generation_tokens", "slipway_deployment_generation_tokens_per_second", "Generated tokens, last minute."),
        ("prompt_tokens", "slipway_deployment_prompt_tokens_per_second", "Prompt tokens, last minute."),
        ("requests", "slipway_deployment_requests_per_second", "Finished requests, last minute."),
        ("errors", "slipway_deployment_errors_per_second", "Failed requests, last minute."),
        ("running", "slipway_deployment_requests_running", "Requests in engines."),
        ("waiting", "slipway_deployment_requests_waiting", "Requests that wait for an engine."),
        ("kv_usage", "slipway_deployment_kv_cache_usage_ratio", "Fullest KV cache, 0 to 1."),
        ("ttft_p95", "slipway_deployment_time_to_first_token_p95_seconds", "95th percentile, last minute."),
    ):
        family = GaugeMetricFamily(name, text, labels=["deployment"])
        for key, now in numbers.items():
            if (value := getattr(now, field)) is not None:
                family.add_metric([names[key]], value)
        yield family


def _ingest() -> Metric:
    family = GaugeMetricFamily("slipway_ingest_age_seconds", "Since ingest was last at work; missing: it is unknown.")
    try:
        at = connection().hget(INGEST_PULSE, "at")
    except RedisError:
        return family
    if at is not None:
        family.add_metric([], max(0.0, time.time() - float(str(at))))
    return family


def of_console() -> bytes:
    """The console's own metrics as text."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Console())
    return generate_latest(registry)


def targets(address: str, *, https: bool) -> list[dict[str, Any]]:
    """Every instance that runs, as HTTP service discovery tells it: `address` is the console's own, as it was asked."""
    found = []
    related = ("deployment", "host", "spec__engine", "spec__copy__revision__model")
    rows = Instance.objects.exclude(state__in=("stopped", "crashed")).select_related(*related)
    for instance in rows.order_by("pk"):
        labels = {
            "__metrics_path__": f"/prometheus/instances/{instance.uuid}/",
            "__scheme__": "https" if https else "http",
            "instance": str(instance.uuid),
            "deployment": instance.deployment.name,
            "number": str(instance.number),
            "host": instance.host.name,
            "state": instance.state,
            "engine_version": instance.spec.engine.version,
            "model": instance.spec.copy.revision.model.name,
        }
        found.append({"targets": [address], "labels": labels})
    return found


def last_sample(instance: Instance) -> InstanceSample | None:
    """An instance's newest sample, out of its host's lane; None if there is no fresh one."""
    entries: Any = connection().xrevrange(samples_stream(instance.host.name), count=20)
    for entry, fields in cast(list[tuple[str, dict[str, str]]], entries):
        if time.time() - int(entry.partition("-")[0]) / 1000 > FRESH_SECONDS:
            return None
        if '"kind":"metrics"' in fields.get("json", ""):
            batch = MetricsBatch.model_validate_json(fields["json"])
            return next((one for one in batch.samples if one.instance == UUID(str(instance.uuid))), None)
    return None


def of_instance(sample: InstanceSample) -> str:
    """A sample as Prometheus text, under vLLM's names."""
    lines: list[str] = []
    for field, name in _GAUGES.items():
        if field in sample.now:
            lines += [f"# TYPE {name} gauge", f"{name} {sample.now[field]!r}"]
    for field, name in _COUNTERS.items():
        if field in sample.counters:
            lines += [f"# TYPE {name.removesuffix('_total')} counter", f"{name} {sample.counters[field]!r}"]
    for counts, name, label in (
        (sample.finished, "vllm:request_success_total", "finished_reason"),
        (sample.admission_rejections, "vllm:admission_rejections_total", "reason"),
    ):
        if counts:
            lines.append(f"# TYPE {name.removesuffix('_total')} counter")
            lines += [f'{name}{{{label}="{_escaped(reason)}"}} {count!r}' for reason, count in counts.items()]
    for field, name in _HISTOGRAMS.items():
        histogram = sample.histograms.get(field)
        if histogram is not None:
            lines.append(f"# TYPE {name} histogram")
            pairs = zip(histogram.bounds, histogram.counts, strict=True)
            lines += [f'{name}_bucket{{le="{bound!r}"}} {count!r}' for bound, count in pairs]
            lines.append(f'{name}_bucket{{le="+Inf"}} {histogram.count!r}')
            lines += [f"{name}_sum {histogram.total!r}", f"{name}_count {histogram.count!r}"]
    if sample.started_at is not None:
        lines += ["# TYPE process_start_time_seconds gauge", f"process_start_time_seconds {sample.started_at!r}"]
    return "\n".join([*lines, ""])


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
