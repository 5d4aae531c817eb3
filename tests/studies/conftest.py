"""A study of one model on a host whose reports are played, step by step, through the real ledger."""

from dataclasses import dataclass, field
from typing import Any

import pytest
import redis

from console.access.models import User
from console.benchmarks.services import Question
from console.deployments import current
from console.deployments.models import Instance
from console.jobs import services as jobs
from console.jobs.models import Job, Step
from console.studies import driver, services, variants
from console.studies.models import Study, Trial
from console.studies.services import Base, Order
from tests.benchmarks.conftest import Stage, make_stage, numbers
from tests.factories import Fleet
from workers.benchmark_payloads import LoadPlan, Targets, Workload
from workers.contracts import StepFinished, StepPart
from workers.vllm import quality

BEFORE = ("launch", "listening", "validate", "warmup")


@dataclass
class Bench:
    """Studies on a stage."""

    stage: Stage
    admin: User
    wrong: set[str] = field(default_factory=set)
    """Keys of questions that the engines answer wrongly from now on."""

    def study(self, changes: str | None = "--max-num-seqs 64 | 128", **more: Any) -> Study:
        fleet = self.stage.fleet
        base = more.pop("base", None) or Base(fleet.copy, fleet.engine, ["--enforce-eager", "--max-num-seqs", "16"])
        question = Question("chat", Workload(), LoadPlan(values=[1, 4], requests=20, repeats=2), Targets(ttft_ms=500))
        given: dict[str, Any] = {"title": "Seqs", "question": question, "neighbours": "beside"} | more
        order = Order(variants=variants.read(changes, grid=given.pop("grid", False)) if changes else [], **given)
        return services.start(base, order, actor=self.admin, reason="try")

    def drive(self, study: Study) -> Study:
        driver.drive_all()
        return Study.objects.get(pk=study.pk)

    def running(self, study: Study) -> Trial:
        return study.trials.select_related("job", "instance").get(state="running")

    def succeed(self, job: Job, kind: str, **result: Any) -> Step:
        step = job.steps.select_related("job", "host").get(kind=kind, state__in=("queued", "running"))
        jobs.started(step)
        told = {"step": step.pk, "fence": step.fence, "outcome": "succeeded", "result": result}
        jobs.finished(step, StepFinished.model_validate(told))
        return Step.objects.get(pk=step.pk)

    def fail(self, job: Job, kind: str, message: str) -> None:
        step = job.steps.select_related("job", "host").get(kind=kind, state__in=("queued", "running"))
        jobs.started(step)
        failure = {"code": "engine.exited", "message": message}
        told = {"step": step.pk, "fence": step.fence, "outcome": "failed", "failure": failure}
        jobs.finished(step, StepFinished.model_validate(told))

    def up_to(self, job: Job, kind: str) -> Step:
        """Let everything before a step succeed."""
        for step in job.steps.order_by("position"):
            if step.kind == kind:
                break
            results: dict[str, dict[str, Any]] = {
                "preflight": {"port": 20500 + job.pk}, "listening": {"seconds": 31.5}, "quality": self.answers(),
            }  # fmt: skip
            self.succeed(job, step.kind, **results.get(step.kind, {}))
        return job.steps.get(kind=kind)

    def answers(self) -> dict[str, Any]:
        told = quality.question_set()
        return {
            "question_set": told.name,
            "answers": [
                {"question": one.key, "answer": one.expected[0], "right": one.key not in self.wrong} for one in told.questions
            ],
        }  # fmt: skip

    def report_runs(self, step: Step, tokens: float, ttft: float = 100) -> None:
        for load in (1, 4):
            for repeat in (1, 2):
                told = numbers(ttft=ttft + repeat, output_tokens_per_second=tokens * load + repeat)
                key = f"concurrency-{load}-{repeat}"
                content = {
                    "key": key,
                    "by": "concurrency",
                    "load": load,
                    "repeat": repeat,
                    "prompts": 20,
                    "numbers": told,
                }
                fresh = Step.objects.select_related("job", "host").get(pk=step.pk)
                jobs.took_part(fresh, StepPart(step=step.pk, fence=fresh.fence, name=key, content=content))

    def measure(self, study: Study, tokens: float, ttft: float = 100) -> Trial:
        """The trial whose turn it is comes up, is measured and ends."""
        self.drive(study)
        trial = self.running(study)
        assert trial.job
        self.report_runs(self.up_to(trial.job, "benchmark"), tokens, ttft)
        self.succeed(trial.job, "benchmark", runs=4, loads=[1, 4])
        self.succeed(trial.job, "stop")
        return Trial.objects.get(pk=trial.pk)

    def gone(self, trial: Trial) -> None:
        """The host has seen an instance's last process end."""
        Instance.objects.filter(pk=trial.instance_id).update(state="stopped", ordered=False, run=False)


@pytest.fixture
def bench(db: None, fleet: Fleet, broker: redis.Redis, admin: User) -> Bench:
    broker.delete(current.KEY)
    return Bench(make_stage(fleet), admin)
