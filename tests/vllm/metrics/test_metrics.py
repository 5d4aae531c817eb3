import math
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from workers.vllm.metrics import CachePool, MetricsSample, parse_metrics

HERE = Path(__file__).parent
REAL = (HERE / "0.32.0-cpu.txt").read_text()
OLD = (HERE / "0.10.txt").read_text()


def by_prometheus(text: str, name: str, **labels: str) -> list[float]:
    """The values of a series as prometheus_client reads them."""
    return [
        sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == name and all(sample.labels.get(label) == value for label, value in labels.items())
    ]


PLAIN = {
    "requests_running": "vllm:num_requests_running",
    "requests_waiting": "vllm:num_requests_waiting",
    "prompt_tokens": "vllm:prompt_tokens_total",
    "cached_prompt_tokens": "vllm:prompt_tokens_cached_total",
    "generation_tokens": "vllm:generation_tokens_total",
    "preemptions": "vllm:num_preemptions_total",
    "prefix_cache_queries": "vllm:prefix_cache_queries_total",
    "prefix_cache_hits": "vllm:prefix_cache_hits_total",
    "kv_cache_usage": "vllm:kv_cache_usage_perc",
    "started_at": "process_start_time_seconds",
    "resident_bytes": "process_resident_memory_bytes",
}


@pytest.mark.parametrize(("field", "series"), PLAIN.items())
def test_numbers_of_a_real_text_are_those_that_prometheus_client_reads(field, series):
    assert [getattr(parse_metrics(REAL, taken_at=0), field)] == by_prometheus(REAL, series)


@pytest.mark.parametrize(
    ("field", "series"),
    [
        ("time_to_first_token", "vllm:time_to_first_token_seconds"),
        ("inter_token_latency", "vllm:inter_token_latency_seconds"),
        ("e2e_latency", "vllm:e2e_request_latency_seconds"),
        ("queue_wait", "vllm:request_queue_time_seconds"),
        ("request_prompt_tokens", "vllm:request_prompt_tokens"),
        ("request_generation_tokens", "vllm:request_generation_tokens"),
    ],
)
def test_histograms_of_a_real_text_are_those_that_prometheus_client_reads(field, series):
    histogram = getattr(parse_metrics(REAL, taken_at=0), field)
    assert list(histogram.counts) == by_prometheus(REAL, f"{series}_bucket")
    assert [histogram.count] == by_prometheus(REAL, f"{series}_count")
    assert [histogram.total] == by_prometheus(REAL, f"{series}_sum")
    assert len(histogram.bounds) == len(set(histogram.bounds)) == len(histogram.counts)
    assert histogram.bounds[-1] == math.inf


def test_labelled_counters_and_the_pool_of_a_real_text():
    sample = parse_metrics(REAL, taken_at=12.5)
    assert dict(sample.finished) == {"stop": 0, "length": 3, "abort": 0, "error": 0, "repetition": 0}
    for reason, count in sample.finished.items():
        assert by_prometheus(REAL, "vllm:request_success_total", finished_reason=reason) == [count]
    assert dict(sample.admission_rejections) == {"max_num_queued_reqs": 0, "max_num_queued_tokens": 0}
    assert sample.cache == CachePool(364, 128, 46592, 22.75, "auto")
    assert sample.asleep is False
    assert sample.taken_at == 12.5


def test_what_a_version_lacks_is_none_and_not_zero():
    sample = parse_metrics(REAL, taken_at=0)
    assert sample.spec_draft_tokens is None
    assert sample.kv_offload_usage is None
    old = parse_metrics(OLD, taken_at=0)
    assert old.cached_prompt_tokens is None
    assert old.asleep is None
    assert old.cache == CachePool(27000, 16, None, None, "fp8")


def test_names_of_older_versions_and_several_engines_become_the_same_fields():
    sample = parse_metrics(OLD, taken_at=0)
    assert sample.requests_running == 7
    assert sample.requests_waiting == 1
    assert sample.kv_cache_usage == 0.75
    assert sample.prefix_cache_queries == 1500
    assert sample.prefix_cache_hits == 250
    assert sample.prompt_tokens == 1_500_500
    assert sample.spec_draft_tokens == 400
    assert sample.spec_accepted_tokens == 300
    assert dict(sample.finished) == {"stop": 15, "abort": 1}
    assert sample.inter_token_latency.counts == (10, 190, 200)
    assert sample.inter_token_latency.total == 11


def test_a_metric_under_two_names_at_once_counts_once():
    both = OLD + 'vllm:kv_cache_usage_perc{engine="0"} 0.5\nvllm:prefix_cache_queries_total{engine="0"} 1500.0\n'
    sample = parse_metrics(both, taken_at=0)
    assert sample.prefix_cache_queries == 1500
    assert sample.kv_cache_usage == 0.5


def test_a_sleeping_engine_is_asleep():
    slept = REAL.replace('sleep_state="awake"} 1.0', 'sleep_state="awake"} 0.0')
    assert parse_metrics(slept, taken_at=0).asleep is True


@pytest.mark.parametrize(
    "text", ["", "\n", "garbage", "vllm:prompt_tokens_total{", "vllm:prompt_tokens_total{} x", "{} 1"]
)
def test_a_text_that_is_none_gives_a_sample_without_anything(text):
    assert parse_metrics(text, taken_at=1) == MetricsSample(taken_at=1)


@pytest.mark.parametrize(
    "line",
    [
        "vllm:prompt_tokens_total 7",
        "vllm:prompt_tokens_total{} 7",
        'vllm:prompt_tokens_total{a="b"}  7  1796000000000',
        'vllm:prompt_tokens_total{model_name="a b} \\"c\\" \\\\"} 7.0',
        'vllm:prompt_tokens_total{model_name="x",} 7e0\r',
    ],
)
def test_every_form_of_a_line_is_read_and_read_again(line):
    for _ in range(2):
        assert parse_metrics(f"# TYPE x counter\n{line}\n", taken_at=0).prompt_tokens == 7


LABEL = st.text(alphabet=st.sampled_from('ab {}"\\,=\n#'), max_size=12)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(LABEL, st.floats(0, 1e12)), min_size=1, max_size=5, unique_by=lambda pair: pair[0]))
def test_any_label_value_is_read_as_prometheus_client_reads_it(pairs):
    def escaped(value: str) -> str:
        return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")

    name = "vllm:request_success_total"
    text = "".join(f'{name}{{finished_reason="{escaped(reason)}"}} {count}\n' for reason, count in pairs)
    expected = {
        sample.labels["finished_reason"]: sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    assert dict(parse_metrics(text, taken_at=0).finished) == expected


def test_reading_is_many_times_faster_than_the_general_parser():
    def best(read, times):
        moments = []
        for _ in range(times):
            start = time.process_time()
            read()
            moments.append(time.process_time() - start)
        return min(moments)

    ours = best(lambda: parse_metrics(REAL, taken_at=0), 60)
    general = best(lambda: list(text_string_to_metric_families(REAL)), 5)
    # About 25 times on a quiet machine.
    assert ours * 8 < general
