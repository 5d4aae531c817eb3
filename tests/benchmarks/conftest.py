"""A ready instance to measure, and runs as its host reports them."""

import base64
import gzip
import json
from dataclasses import dataclass
from typing import Any

import pytest
import redis

from console.access.models import User
from console.benchmarks import services
from console.benchmarks.models import Benchmark
from console.benchmarks.services import Question
from console.deployments import current
from console.deployments.models import Deployment, Instance
from console.fleet.models import Device
from console.jobs import services as jobs
from console.jobs.models import Job, Step
from tests.factories import Fleet
from workers.benchmark_payloads import LoadPlan, Targets, Workload
from workers.contracts import StepFinished, StepPart


def numbers(**changes: Any) -> dict[str, Any]:
    """What one run came to."""
    ttft = changes.pop("ttft", 100.0)
    latency = {"mean": ttft, "p50": ttft, "p75": ttft, "p90": 1.4 * ttft, "p95": 1.5 * ttft, "p99": 2 * ttft}
    return {
        "seconds": 10.0, "completed": 20, "failed": 0, "requests_per_second": 2.0, "output_tokens_per_second": 64.0,
        "total_tokens_per_second": 128.0, "input_tokens": 640, "output_tokens": 640, "goodput_per_second": 2.0,
        "latencies": {"ttft": latency, "itl": latency, "tpot": latency, "e2e": latency},
    } | changes  # fmt: skip


@dataclass
class Stage:
    """One ready instance of one deployment."""

    fleet: Fleet
    instance: Instance

    def question(self, **changes: Any) -> Question:
        loads = {"values": [1, 4], "requests": 20, "repeats": 2} | changes.pop("loads", {})
        given: dict[str, Any] = {
            "profile": "chat", "workload": Workload(), "loads": LoadPlan(**loads), "targets": Targets(ttft_ms=500),
        }  # fmt: skip
        return Question(**(given | changes))

    def measure(self, actor: User | None = None, **changes: Any) -> Benchmark:
        question = changes.pop("question", None) or self.question()
        return services.measure_instance(self.instance, question, actor=actor, **changes)

    def step(self, benchmark: Benchmark) -> Step:
        return Step.objects.select_related("job", "host").get(pk=benchmark.step)

    def report_run(self, benchmark: Benchmark, load: float = 1, repeat: int = 1, **changes: Any) -> None:
        problem = changes.pop("problem", "")
        content = {
            "key": f"concurrency-{load:g}-{repeat}", "by": "concurrency", "load": load, "repeat": repeat, "prompts": 20,
            "numbers": None if problem else numbers(**changes), "problem": problem,
            "requests": [
                {"at": 0.1 * index, "ttft_ms": 90.0 + index, "e2e_ms": 900.0, "output_tokens": 32} for index in range(20)
            ],
            "argv": ["vllm", "bench", "serve"], "host": {"cpu_share": 0.4, "load_average": 1.5, "memory_available": 2**30},
        }  # fmt: skip
        raw = base64.b64encode(gzip.compress(json.dumps({"duration": 10.0, "ttfts": [0.1]}).encode())).decode()
        step = self.step(benchmark)
        part = StepPart(step=step.pk, fence=step.fence, name=content["key"], content=content, raw=raw)
        jobs.took_part(step, part)

    def end(self, benchmark: Benchmark, outcome: str = "succeeded", **fields: Any) -> Benchmark:
        step = self.step(benchmark)
        jobs.started(step)
        result = {"runs": 2, "loads": [1, 4]} if outcome == "succeeded" else {}
        told: dict[str, Any] = {"step": step.pk, "fence": step.fence, "outcome": outcome, "result": result}
        jobs.finished(step, StepFinished.model_validate(told | fields))
        benchmark.refresh_from_db()
        return benchmark

    def whole(self, *, actor: User | None = None, title: str = "", **changes: Any) -> Benchmark:
        """A benchmark with two loads, each measured twice."""
        benchmark = self.measure(actor, title=title)
        for load in (1, 4):
            for repeat in (1, 2):
                self.report_run(benchmark, load, repeat, **changes)
        return self.end(benchmark)


def make_stage(fleet: Fleet) -> Stage:
    Device.objects.create(
        host=fleet.host, kind="cpu", index=0, uuid="cpu", name="A CPU", memory_total=2**34, memory_free=2**33
    )
    fleet.deploy()
    instance = Instance.objects.get(host=fleet.host)
    Job.objects.update(state="succeeded")
    Step.objects.update(state="succeeded")
    Instance.objects.filter(pk=instance.pk).update(state="ready", ordered=True, run=True, port=20001, bring_up="agent")
    Deployment.objects.filter(pk=instance.deployment_id).update(state="serving")
    return Stage(fleet, Instance.objects.select_related("deployment", "host", "spec").get(pk=instance.pk))


@pytest.fixture
def stage(db: None, fleet: Fleet, broker: redis.Redis) -> Stage:
    broker.delete(current.KEY)
    return make_stage(fleet)
