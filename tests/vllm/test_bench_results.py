"""Results of `vllm bench serve` of several versions in one shape."""

import json
from pathlib import Path
from typing import Any

import pytest

from workers.benchmark_payloads import BenchmarkPayload, LoadPlan, Targets, Workload
from workers.vllm.bench_command import Client, One, bench_argv
from workers.vllm.bench_results import UnreadableResult, read_numbers, read_requests, without_texts

TARGETS = Targets(ttft_ms=2000, e2e_ms=5000)
NEW: dict[str, Any] = {
    "duration": 10.0, "completed": 18, "failed": 2, "num_prompts": 20, "request_throughput": 1.8, "request_goodput": 0.9,
    "output_throughput": 57.6, "total_token_throughput": 172.8, "total_input_tokens": 1152, "total_output_tokens": 576,
    "max_concurrent_requests": 4, "mean_ttft_ms": 300.0, "median_ttft_ms": 250.0, "p50_ttft_ms": 250.0,
    "p75_ttft_ms": 300.0, "p90_ttft_ms": 500.0, "p95_ttft_ms": 600.0, "p99_ttft_ms": 900.0,
    "errors": ["", "Traceback\n  x\nTimeoutError: too late", "Traceback\n  y\nTimeoutError: too late"],
}  # fmt: skip


def test_a_new_version_is_read() -> None:
    numbers = read_numbers(NEW, targets=TARGETS)
    assert (numbers.completed, numbers.failed, numbers.error_share) == (18, 2, 0.1)
    assert numbers.good_share == pytest.approx(0.5)
    assert numbers.latencies["ttft"].p95 == 600
    assert numbers.errors == {"TimeoutError: too late": 2}


def test_an_old_version_has_no_count_of_failures_and_another_name_for_goodput() -> None:
    old = {name: value for name, value in NEW.items() if name not in ("failed", "request_goodput", "p50_ttft_ms")}
    numbers = read_numbers(old | {"request_goodput:": 0.9}, targets=TARGETS)
    assert numbers == read_numbers(NEW, targets=TARGETS)


def test_without_targets_goodput_is_unknown_and_not_zero() -> None:
    assert read_numbers(NEW | {"request_goodput": None}, targets=Targets()).goodput_per_second is None
    assert read_numbers(NEW | {"request_goodput": 0.0}, targets=Targets()).good_share is None


def test_a_run_that_completed_nothing_has_no_latencies_instead_of_zeros() -> None:
    nothing = NEW | {"completed": 0, "failed": 20, "mean_ttft_ms": 0.0, "p99_ttft_ms": 0.0, "request_throughput": 0.0}
    numbers = read_numbers(nothing, targets=TARGETS)
    assert numbers.latencies == {}
    assert numbers.error_share == 1


def test_what_is_no_result_is_refused() -> None:
    with pytest.raises(UnreadableResult, match="duration"):
        read_numbers({"results": []}, targets=TARGETS)


def test_requests_come_in_order_and_long_runs_are_thinned() -> None:
    count = 2500
    raw = {
        "start_times": [1000.0 + count - index for index in range(count)], "ttfts": [0.1] * count,
        "itls": [[0.01] * 9] * count, "output_lens": [10] * count, "errors": [""] * count,
    }  # fmt: skip
    rows, left_out = read_requests(raw)
    assert len(rows) + left_out == count
    assert len(rows) == 1000
    assert rows[0].at == 0
    assert [one.at for one in rows] == sorted(one.at for one in rows)
    assert rows[0].e2e_ms == pytest.approx(190)


def test_generated_texts_are_not_kept() -> None:
    assert "generated_texts" not in without_texts({"generated_texts": ["a secret"], "duration": 1})


def payload(**changes: Any) -> BenchmarkPayload:
    given: dict[str, Any] = {
        "remote": {"url": "http://127.0.0.1:1", "model": "m"}, "engine": "e", "tokenizer_path": "t",
        "workload": Workload(), "loads": LoadPlan(values=[4], requests=20), "targets": TARGETS,
    }  # fmt: skip
    return BenchmarkPayload.model_validate(given | changes)


def argv(asked: BenchmarkPayload, version: tuple[int, ...] = (0, 32)) -> list[str]:
    client = Client(["vllm"], version, "http://127.0.0.1:1", "m", "/models/t")
    return bench_argv(client, asked, One(4, 20, 2, 7, Path("/r/x.json"), Path("/r/upload.jsonl")))


def test_the_command_names_what_is_asked() -> None:
    words = argv(payload())
    text = " ".join(words)
    assert words[:3] == ["vllm", "bench", "serve"]
    assert "--request-rate inf --max-concurrency 4" in text
    assert "--goodput ttft:2000 e2el:5000" in text
    assert "--num-warmups 2" in text
    assert "--ignore-eos" in text
    assert json.dumps(words).find("Bearer") == -1


def test_an_engine_without_warm_ups_is_not_given_the_option() -> None:
    assert "--num-warmups" not in argv(payload(), (0, 11))


@pytest.mark.parametrize(
    ("workload", "words"),
    [
        (Workload(kind="shared_prefix", prefix_tokens=900, prefixes=50), "--prefix-repetition-num-prefixes 20"),
        (Workload(kind="conversations"), "--dataset-name sharegpt --dataset-path /r/upload.jsonl"),
        (Workload(kind="prompts"), "--dataset-name custom --dataset-path /r/upload.jsonl"),
        (Workload(spread=0.5), "--random-range-ratio 0.5"),
        (Workload(interface="chat"), "--endpoint /v1/chat/completions"),
    ],
)
def test_every_kind_of_prompts_has_its_dataset(workload: Workload, words: str) -> None:
    assert words in " ".join(argv(payload(workload=workload)))


def test_a_rate_is_asked_for_as_a_rate() -> None:
    text = " ".join(argv(payload(loads=LoadPlan(by="rate", values=[4], requests=20, burstiness=0.5))))
    assert "--request-rate 4 --burstiness 0.5" in text
    assert "--max-concurrency" not in text
