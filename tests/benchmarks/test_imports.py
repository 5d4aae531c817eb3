"""Results of other tools, kept as benchmarks."""

import json
from typing import Any

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client
from django.urls import reverse

from console.access.models import User
from console.benchmarks.models import Benchmark
from workers.benchmark_payloads import Workload
from workers.vllm.bench_command import _range_ratio
from workers.vllm.bench_imports import read_import
from workers.vllm.bench_results import UnreadableResult


def of_vllm(at_once: int | None = 4, run: int | None = 0, **more: Any) -> dict[str, Any]:
    """A result as `vllm bench sweep serve` writes it: only p99, and the run's number beside the rest."""
    result = {
        "duration": 10.0, "completed": 20, "failed": 1, "num_prompts": 21, "request_rate": "inf", "max_concurrency": at_once,
        "model_id": "qwen", "request_throughput": 2.0, "output_throughput": 64.0, "total_token_throughput": 128.0,
        "total_input_tokens": 640, "total_output_tokens": 640, "request_goodput": None,
    }  # fmt: skip
    for name in ("ttft", "tpot", "itl", "e2el"):
        result |= {f"mean_{name}_ms": 110.0, f"median_{name}_ms": 100.0, f"p99_{name}_ms": 200.0}
    return result | ({} if run is None else {"run_number": run}) | more


def of_guidellm(strategy: dict[str, Any]) -> dict[str, Any]:
    shares = {"p50": 1.0, "p75": 1.2, "p90": 1.5, "p95": 1.7, "p99": 2.0}
    times = {"successful": {"mean": 1.1, "median": 1.0, "percentiles": shares}}
    metrics = {
        "request_totals": {"successful": 30, "errored": 2, "incomplete": 1, "total": 33},
        "requests_per_second": {"successful": {"mean": 3.0}}, "output_tokens_per_second": {"successful": {"mean": 90.0}},
        "tokens_per_second": {"successful": {"mean": 150.0}}, "request_concurrency": {"successful": {"mean": 7.6, "max": 9}},
        "time_to_first_token_ms": times, "time_per_output_token_ms": times, "inter_token_latency_ms": times,
        "request_latency": times, "prompt_token_count": {"successful": {"total_sum": 900}},
    }  # fmt: skip
    one = {"config": {"strategy": strategy, "backend": {"model": "qwen"}}, "metrics": metrics, "duration": 11.0}
    return {"metadata": {}, "benchmarks": [one]}


def test_the_runs_of_a_sweep_have_their_load_and_say_that_p95_is_missing() -> None:
    first, second = read_import([of_vllm(4), of_vllm(8, run=1)])
    assert (first.tool, first.by, first.load, second.load) == ("vllm bench sweep", "concurrency", 4, 8)
    assert first.numbers.failed == 1
    assert first.numbers.latencies["e2e"].p50 == 100
    assert "p99 stands for it" in first.note


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"request_rate": 2.5, "max_concurrency": None}, ("rate", 2.5)),
        ({"request_rate": "2.5", "max_concurrency": 64}, ("rate", 2.5)),
        ({"request_rate": "inf", "max_concurrency": None}, ("concurrency", 21)),
    ],
)
def test_a_load_is_a_rate_or_a_number_at_once(changes: dict[str, Any], expected: tuple[str, float]) -> None:
    found = read_import(of_vllm(run=None, **changes))[0]
    assert (found.by, found.load) == expected
    assert found.tool == "vllm bench serve"


@pytest.mark.parametrize(
    ("strategy", "expected"),
    [
        ({"type_": "synchronous"}, ("concurrency", 1)),
        ({"type_": "concurrent", "streams": 16}, ("concurrency", 16)),
        ({"type_": "constant", "rate": 2.5}, ("rate", 2.5)),
        ({"type_": "throughput"}, ("concurrency", 8)),
    ],
)
def test_a_guidellm_report_is_read_with_seconds_as_milliseconds(
    strategy: dict[str, Any], expected: tuple[str, float]
) -> None:
    found = read_import(of_guidellm(strategy))[0]
    assert (found.by, found.load) == expected
    assert found.numbers.latencies["e2e"].p95 == 1700
    assert found.numbers.latencies["ttft"].p95 == 1.7
    assert (found.numbers.completed, found.numbers.failed) == (30, 2)


@pytest.mark.parametrize("content", [{}, [], [1], {"benchmarks": []}, {"benchmarks": [{"a": 1}]}, "text", None])
def test_anything_else_is_not_understood(content: Any) -> None:
    with pytest.raises(UnreadableResult):
        read_import(content)


def upload(name: str, content: Any) -> SimpleUploadedFile:
    data = content if isinstance(content, bytes) else json.dumps(content).encode()
    return SimpleUploadedFile(name, data, content_type="application/json")


def test_several_files_become_one_benchmark_whose_repeats_show_the_noise(client: Client, operator: User) -> None:
    client.force_login(operator)
    files = [upload("run=0.json", of_vllm()), upload("run=1.json", of_vllm(run=1, output_throughput=66.0))]
    answer = client.post(reverse("benchmark_import"), {"results": files, "title": "theirs"}, follow=True)
    benchmark = Benchmark.objects.get()
    assert benchmark.is_whole
    assert benchmark.runs.count() == 2
    text = answer.content.decode()
    for words in ("vllm bench sweep", "65.0/s", "4 at once", "not told by the file", "p99 stands for it"):
        assert words in text
    assert client.get(reverse("benchmark_compare"), {"id": [benchmark.pk, benchmark.pk]}).status_code == 200
    for kind in ("csv", "json", "html"):
        assert client.get(reverse("benchmark_export", args=[benchmark.pk, kind])).status_code == 200


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"\xff", "is no JSON"),
        ({"a": 1}, "not understood"),
        ([of_vllm(), of_vllm(request_rate=2)], "Import them apart"),
    ],
)
def test_a_file_that_cannot_be_read_is_named_and_leaves_nothing(
    client: Client, operator: User, content: Any, why: str
) -> None:
    client.force_login(operator)
    answer = client.post(reverse("benchmark_import"), {"results": [upload("theirs.json", content)]})
    assert answer.status_code == 400
    assert why in answer.content.decode()
    assert not Benchmark.objects.exists()


def test_viewers_import_nothing(client: Client, viewer: User) -> None:
    client.force_login(viewer)
    assert client.get(reverse("benchmark_import")).status_code == 403


def test_prompts_and_answers_may_be_uneven_by_different_shares() -> None:
    assert _range_ratio(Workload(spread=0.5)) == "0.5"
    assert json.loads(_range_ratio(Workload(spread=0.2, output_spread=0.8))) == {"input": 0.2, "output": 0.8}
