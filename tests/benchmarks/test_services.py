"""Asking for a benchmark, and what its host's reports do to it."""

from typing import Any

import pytest
import redis
from django.utils import timezone

from console.access.models import AuditEntry, User
from console.benchmarks import services, subjects, uploads
from console.benchmarks.models import Benchmark, Dataset
from console.benchmarks.profiles import PROFILES, fitted
from console.benchmarks.services import Remote, TrafficRefused
from console.common.errors import Refused
from console.deployments import current
from console.deployments.current import Current
from console.deployments.models import Instance
from console.jobs import services as jobs
from console.jobs.kinds import handler_of
from tests.benchmarks.conftest import Stage
from workers.contracts import Failure


def test_it_is_a_job_of_one_step_on_the_instance_s_host(stage: Stage, operator: User) -> None:
    benchmark = stage.measure(operator, title="before the upgrade", tags=["nightly"])
    step = stage.step(benchmark)
    assert (step.kind, step.host) == ("benchmark", stage.fleet.host)
    assert step.payload["devices"] == ["cpu"]
    assert benchmark.subject["engine_version"] == "0.32.0"
    assert benchmark.subject["arguments"] == ["--enforce-eager"]
    assert AuditEntry.objects.filter(action="benchmark.start", actor=operator).exists()
    benchmark.refresh_from_db()
    assert benchmark.state == "running"


def test_only_an_instance_that_is_ready_is_measured(stage: Stage) -> None:
    Instance.objects.filter(pk=stage.instance.pk).update(state="loading")
    stage.instance.refresh_from_db()
    with pytest.raises(Refused, match="only an instance that is ready"):
        stage.measure()
    assert not Benchmark.objects.exists()


def test_an_instance_that_people_use_needs_a_yes(stage: Stage, broker: redis.Redis) -> None:
    busy = current.dump(Current(at=timezone.now().timestamp(), running=3.0, waiting=0.0, requests=0.5))
    broker.hset(current.KEY, str(stage.instance.uuid), busy)
    with pytest.raises(TrafficRefused, match="33 requests"):
        stage.measure()
    assert stage.measure(despite_traffic=True).pk


def test_an_engine_without_a_benchmark_client_is_refused(stage: Stage) -> None:
    stage.fleet.engine.version = "0.8.5"
    stage.fleet.engine.save()
    with pytest.raises(Refused, match=r"since 0\.10"):
        stage.measure()


def test_runs_are_kept_as_they_come_and_the_same_one_twice_is_one(stage: Stage) -> None:
    benchmark = stage.measure()
    stage.report_run(benchmark, 1)
    stage.report_run(benchmark, 1, ttft=200.0)
    run = benchmark.runs.get()
    assert run.told
    assert run.told.latencies["ttft"].p50 == 200
    assert run.raw_json() == {"duration": 10.0, "ttfts": [0.1]}
    assert len(run.times) == 20


def test_a_whole_benchmark_has_its_result(stage: Stage) -> None:
    benchmark = stage.whole()
    assert benchmark.is_whole
    assert benchmark.outcome
    assert benchmark.outcome.loads == [1, 4]


def test_one_whose_engine_died_keeps_its_runs_and_is_not_whole(stage: Stage) -> None:
    benchmark = stage.measure()
    stage.report_run(benchmark, 1)
    stage.end(benchmark, "failed", failure=Failure(code="engine.exited", message="the engine was killed"))
    assert (benchmark.state, benchmark.is_whole, benchmark.outcome) == ("failed", False, None)
    assert benchmark.failure["message"] == "the engine was killed"
    assert benchmark.runs.count() == 1


def test_a_retry_of_its_job_goes_on_with_the_start_that_runs_now(stage: Stage, operator: User) -> None:
    benchmark = stage.measure()
    stage.end(benchmark, "failed", failure=Failure(code="x", message="y"))
    Instance.objects.filter(pk=stage.instance.pk).update(start=3)
    assert benchmark.job
    jobs.retry(benchmark.job, actor=operator)
    benchmark.refresh_from_db()
    assert (benchmark.state, benchmark.failure) == ("running", None)
    step = stage.step(benchmark)
    assert handler_of(step.job).payload(step)["start"] == 3


def test_a_cancelled_one_is_cancelled(stage: Stage, operator: User) -> None:
    benchmark = stage.measure()
    assert benchmark.job
    jobs.cancel(benchmark.job, actor=operator, reason="too late in the day")
    stage.end(benchmark, "cancelled")
    assert benchmark.state == "cancelled"


def test_an_upload_travels_with_the_step_and_is_not_stored_in_it(stage: Stage, operator: User) -> None:
    dataset = Dataset.objects.create(name="own", form="prompts", rows=[{"prompt": "hello"}], found=1, sha256="x")
    question = stage.question(
        workload=PROFILES["custom"].workload.model_copy(update={"kind": "prompts"}), dataset=dataset
    )
    step = stage.step(stage.measure(operator, question=question))
    assert "prompts" not in step.payload["workload"]
    assert handler_of(step.job).payload(step)["workload"]["prompts"] == [{"prompt": "hello"}]


def remote(stage: Stage, **changes: Any) -> Remote:
    given = {
        "url": "https://ai.example.com",
        "model": "m",
        "key": "sk-1",
        "engine": stage.fleet.engine,
        "tokenizer": stage.fleet.copy,
    }
    return Remote(**(given | changes))


def test_another_server_s_key_is_sealed_on_the_way_and_forgotten_at_the_end(stage: Stage, admin: User) -> None:
    benchmark = services.measure_remote(remote(stage), stage.question(), actor=admin)
    assert "sk-1" not in benchmark.remote_key
    step = stage.step(benchmark)
    assert handler_of(step.job).secrets(step) == {"target_key": "sk-1"}
    assert "sk-1" not in str(step.payload)
    assert stage.end(benchmark).remote_key == ""


def test_prompts_are_cut_to_what_the_context_allows() -> None:
    workload = fitted(PROFILES["long_prompt"].workload, 1024)
    longest = (workload.input_tokens + workload.output_tokens) * (1 + workload.spread)
    assert longest <= 1024
    assert workload.input_tokens / workload.output_tokens == pytest.approx(30, rel=0.1)
    assert fitted(PROFILES["chat"].workload, None) == PROFILES["chat"].workload


def test_the_order_in_which_arguments_were_typed_makes_no_other_class(stage: Stage) -> None:
    spec = stage.instance.spec
    spec.arguments = ["--max-num-seqs", "8", "--enforce-eager"]
    first = subjects.spec_class(spec)
    spec.arguments = ["--enforce-eager", "--max-num-seqs", "8"]
    assert subjects.spec_class(spec) == first
    spec.arguments = ["--enforce-eager", "--max-num-seqs", "9"]
    assert subjects.spec_class(spec) != first


@pytest.mark.parametrize(
    ("content", "form", "count"),
    [
        ('[{"conversations": [{"from": "human", "value": "a?"}, {"from": "gpt", "value": "b"}]}]', "conversations", 1),
        ('{"prompt": "one"}\n{"question": "two", "output_tokens": 5}\n', "prompts", 2),
        ("first line\n\nsecond line\n", "prompts", 2),
    ],
)
def test_three_forms_of_files_are_read(content: str, form: str, count: int) -> None:
    found = uploads.read(content.encode())
    assert (found.form, found.found) == (form, count)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "no prompt"),
        (b"\xff\xfe\x00", "not text"),
        (b"[1, 2", "like JSON"),
        (b'[{"a": 1}]', "No conversation"),
        (b'{"prompt": "a"}\n{"nothing": 1}', "Line 2 has no prompt"),
        (b'{"prompt": "a"}\nnonsense', "Line 2 is no JSON"),
    ],
)
def test_a_file_that_is_none_of_them_is_refused_with_the_place(content: bytes, said: str) -> None:
    with pytest.raises(Refused, match=said):
        uploads.read(content)


def test_a_long_file_is_sampled_evenly() -> None:
    found = uploads.read("\n".join(f"prompt number {index}" for index in range(10_000)).encode())
    assert found.found == 10_000
    assert len(found.rows) == 2_000
    assert found.rows[1]["prompt"] == "prompt number 5"


def test_typed_prompts_are_lines_or_blocks() -> None:
    assert [one["prompt"] for one in uploads.own_prompts("a\nb\n")] == ["a", "b"]
    assert [one["prompt"] for one in uploads.own_prompts("a\nb\n\nc")] == ["a\nb", "c"]
