"""Suggestions are concrete, and each was planned again."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.vllm.memory.models import GIB, MIB, config, llama, public_shape, shape
from workers.vllm.memory import (
    Conditions,
    LearnedResidual,
    MeasuredLayouts,
    Plan,
    PlanRequest,
    Suggestion,
    find_device,
    learn,
    plan,
    read_shape,
)

FIELDS = {
    "max-model-len": ("max_model_len", int), "gpu-memory-utilization": ("gpu_memory_utilization", float),
    "kv-cache-memory-bytes": ("kv_cache_memory", int), "max-num-batched-tokens": ("max_num_batched_tokens", int),
    "kv-cache-dtype": ("kv_cache_dtype", str), "tensor-parallel-size": ("tensor_parallel", int),
}  # fmt: skip


def suggested(made: Plan, code: str) -> Suggestion:
    return next(suggestion for suggestion in made.suggestions if suggestion.code == code)


def taken(request: PlanRequest, suggestion: Suggestion) -> PlanRequest:
    changes: dict[str, Any] = {}
    for name, value in suggestion.changes:
        if name in FIELDS:
            field, kind = FIELDS[name]
            changes[field] = kind(value)
    if "tensor_parallel" in changes:
        changes["count"] = None
    return replace(request, **changes)


def test_a_context_that_is_too_long_is_answered_with_one_that_fits() -> None:
    request = PlanRequest(device=find_device("L4"), max_model_len=65536)
    model = read_shape(llama(max_position_embeddings=131072))
    made = plan(model, request)
    assert made.fits is False
    suggestion = suggested(made, "context")
    better = plan(model, taken(request, suggestion))
    assert better.fits is True
    context = int(dict(suggestion.changes)["max-model-len"])
    assert suggestion.text == f"{context:,} context fits with {(better.left_fraction or 0) * 100:.0f} % left"
    assert plan(model, replace(request, max_model_len=context + 2048)).fits is False  # nothing was given away


def test_weights_that_are_too_large_are_answered_with_devices_and_an_fp8_revision() -> None:
    request = PlanRequest(device=find_device("L40S"))
    model = read_shape(llama(hidden_size=8192, intermediate_size=28672, num_hidden_layers=32, num_attention_heads=64))
    made = plan(model, request)
    assert made.fits is False
    texts = made.as_json()["suggestions"]
    assert any(text.startswith("2 × NVIDIA L40S") for text in texts)
    assert any(text.startswith("an FP8 revision would take about ") and "GiB" in text for text in texts)
    assert any(text.startswith("1 × ") for text in texts)
    assert plan(model, taken(request, suggested(made, "more_devices"))).fits is True


def test_memory_held_by_strangers_is_answered_with_a_lower_utilisation() -> None:
    request = PlanRequest(device=find_device("H100"), free_bytes=40 * GIB)
    made = plan(public_shape("llama-3-8b"), request)
    assert made.fits is False
    assert made.reasons[0].code == "memory.free_below_utilization"
    assert plan(public_shape("llama-3-8b"), taken(request, suggested(made, "utilization"))).fits is True
    same = plan(public_shape("llama-3-8b"), PlanRequest(device=find_device("H100"), strangers_bytes=40 * GIB))
    assert same.fits is False


def test_too_few_kv_bytes_are_answered_with_enough_and_with_fp8() -> None:
    request = PlanRequest(platform="cpu", kv_cache_memory=2 * MIB, max_model_len=2048, cpu_avx512=True)
    made = plan(shape("llama-gqa"), request)
    enough = suggested(made, "kv_memory")
    assert dict(enough.changes)["kv-cache-memory-bytes"] == str(4 * MIB)
    assert plan(shape("llama-gqa"), taken(request, enough)).fits is True
    assert plan(shape("llama-gqa"), taken(request, suggested(made, "kv_cache_dtype"))).fits is True


def test_an_fp8_cache_is_not_suggested_below_sm_89() -> None:
    made = plan(
        read_shape(llama(max_position_embeddings=131072)), PlanRequest(device=find_device("A10G"), max_model_len=80000)
    )
    assert made.fits is False
    assert "kv_cache_dtype" not in {suggestion.code for suggestion in made.suggestions}


def test_windows_of_large_batches_are_answered_with_smaller_ones() -> None:
    model = read_shape(config("gemma3-swa") | {"max_position_embeddings": 131072})
    small = PlanRequest(max_model_len=65536, max_num_batched_tokens=2048, kv_cache_memory=GIB)
    enough = plan(model, small).min_kv_bytes_for_one_request
    request = replace(small, max_num_batched_tokens=16384, kv_cache_memory=enough)
    made = plan(model, request)
    assert made.fits is False
    assert plan(model, taken(request, suggested(made, "batched_tokens"))).fits is True


def test_heads_that_do_not_divide_are_answered_with_a_size_that_does() -> None:
    request = PlanRequest(device=find_device("H100"), count=3)
    made = plan(public_shape("llama-3-8b"), request)
    assert made.fits is False
    assert dict(suggested(made, "tensor_parallel").changes) == {"tensor-parallel-size": "2"}


def test_a_small_model_leaves_the_rest_to_others() -> None:
    request = PlanRequest(device=find_device("H100"), wanted_concurrency=4)
    made = plan(public_shape("llama-3-8b"), request)
    suggestion = suggested(made, "less_utilization")
    assert suggestion.text.endswith("is enough for 4 requests of 8,192 tokens at once: leave the rest to others")
    better = plan(public_shape("llama-3-8b"), taken(request, suggestion))
    assert better.fits is True
    assert (better.max_concurrency or 0) >= 4
    assert better.gpu_memory_utilization < 0.4


def test_measured_lengths_shorten_the_context() -> None:
    request = PlanRequest(device=find_device("H100"), p95_tokens=5900, max_model_len=32768)
    made = plan(read_shape(llama(max_position_embeddings=131072)), request)
    text = suggested(made, "measured_context").text
    assert text.startswith("95 % of requests here used under 5,900 tokens: 8,192 is enough")


def test_two_replicas_are_suggested_only_when_they_hold_more() -> None:
    latent = plan(
        public_shape("glm-5-fp8"),
        PlanRequest(device=find_device("B200"), count=16, tensor_parallel=16, max_model_len=8192),
    )
    assert latent.fits is True
    replicas = suggested(latent, "replicas")
    half = plan(public_shape("glm-5-fp8"), PlanRequest(device=find_device("B200"), count=8, max_model_len=8192))
    assert 2 * (half.max_concurrency or 0) > (latent.max_concurrency or 0)
    assert dict(replicas.changes) == {"tensor-parallel-size": "8", "replicas": "2"}
    dense = plan(public_shape("llama-3-8b"), PlanRequest(device=find_device("H100"), count=2))
    assert "replicas" not in {suggestion.code for suggestion in dense.suggestions}


WIDE = PlanRequest(device=find_device("B200"), count=16, tensor_parallel=16, max_model_len=8192)


@pytest.mark.parametrize(("seen", "code", "words"), [
    (None, "replicas", "by the plan alone: no benchmark has measured it"),
    (MeasuredLayouts(1900, None, "32 requests at once", "benchmark 7"), "replicas",
     "of the two only one of TP 16 was measured, 1,900 tokens/s, benchmark 7"),
    (MeasuredLayouts(None, 2000, "32 requests at once", "benchmark 8"), "replicas",
     "of the two only 2 of TP 8 together was measured, 2,000 tokens/s, benchmark 8"),
    (MeasuredLayouts(1900, 2480, "32 requests at once", "benchmarks 7 and 8"), "replicas",
     "made 2,480 tokens/s together, one of TP 16 1,900: measured at 32 requests at once (benchmarks 7 and 8)"),
    (MeasuredLayouts(1900, 1200, "32 requests at once", "benchmarks 7 and 8"), "keep_together",
     "made 1,200 tokens/s together where one of TP 16 made 1,900"),
])  # fmt: skip
def test_advice_on_replicas_rests_on_benchmarks_where_both_layouts_were_measured(
    seen: MeasuredLayouts | None, code: str, words: str
) -> None:
    made = plan(public_shape("glm-5-fp8"), replace(WIDE, measured=seen, replicas=3))
    found = suggested(made, code)
    assert words in found.text
    expected = {"tensor-parallel-size": "8", "replicas": "6"} if code == "replicas" else {}
    assert dict(found.changes) == expected


def test_benchmarks_suggest_replicas_that_hold_fewer_requests() -> None:
    request = PlanRequest(device=find_device("H100"), count=2)
    seen = MeasuredLayouts(1900, 2480, "32 requests at once", "benchmarks 7 and 8")
    plain, measured = (plan(public_shape("llama-3-8b"), replace(request, measured=one)) for one in (None, seen))
    assert "replicas" not in {one.code for one in plain.suggestions}
    assert suggested(measured, "replicas").changes


def test_nothing_is_suggested_without_a_verdict() -> None:
    made = plan(shape("llama-gqa"), PlanRequest())
    assert made.fits is None
    assert made.suggestions == ()
    assert made.kv_bytes_per_token == 1536
    assert made.num_blocks is None


@settings(max_examples=25, deadline=None)
@given(
    name=st.sampled_from(["llama-3-8b", "qwen3-30b-a3b-fp8", "gemma-4-31b-fp8-block"]),
    device=st.sampled_from(["T4", "L4", "4090", "L40S", "A100-40", "H100"]),
    context=st.integers(1000, 300_000),
    utilization=st.floats(0.3, 0.95),
)
def test_every_suggestion_fits_when_it_is_taken(name: str, device: str, context: int, utilization: float) -> None:
    request = PlanRequest(device=find_device(device), max_model_len=context, gpu_memory_utilization=utilization)
    model = public_shape(name)
    made = plan(model, request)
    for suggestion in made.suggestions:
        if suggestion.code in {"fp8_revision", "other_device"}:
            continue  # these change the model or the device, not an argument
        assert plan(model, taken(request, suggestion)).fits is True, suggestion


@pytest.mark.parametrize("request_", [
    {"max_model_len": 0}, {"tensor_parallel": 0}, {"kv_cache_memory": -1}, {"gpu_memory_utilization": 1.5},
    {"engine_version": "newest"},
])  # fmt: skip
def test_a_request_that_makes_no_sense_is_refused(request_: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"at least 1|fraction|not an engine version"):
        plan(shape("llama-gqa"), PlanRequest(**request_))


def test_a_newer_engine_is_planned_with_the_newest_rules_and_said_so() -> None:
    made = plan(shape("llama-gqa"), PlanRequest(kv_cache_memory=GIB, engine_version="0.40.1"))
    assert any(reason.code == "engine.newer_than_known" for reason in made.reasons)


def test_a_context_beyond_the_model_is_an_error() -> None:
    made = plan(shape("llama-gqa"), PlanRequest(kv_cache_memory=GIB, max_model_len=8192))
    assert made.fits is False
    assert made.reasons[0].code == "context.exceeds_model"
    assert suggested(made, "context").text.startswith("4,096 context fits")


def seen_under(made: Plan, nbytes: int) -> LearnedResidual:
    """An overhead that was learned under the conditions of this plan."""
    under = Conditions(made.max_num_batched_tokens, made.tensor_parallel, made.pipeline_parallel, made.enforce_eager)
    return learn([nbytes], under)


def test_smaller_steps_are_not_planned_with_what_was_learned_of_large_ones() -> None:
    model = read_shape(config("gemma3-swa") | {"max_position_embeddings": 131072})
    request = PlanRequest(device=find_device("T4"), max_model_len=65536, max_num_batched_tokens=16384)
    first = plan(model, request)
    learned = replace(request, learned=(seen_under(first, 13 * GIB),))
    made = plan(model, learned)
    assert made.fits is False
    assert made.overhead.source == "learned"
    small = suggested(made, "batched_tokens")
    better = plan(model, taken(learned, small))
    assert better.fits is True
    assert better.overhead.source == "first guess"
    assert "ran with other batched tokens" in " ".join(reason.text for reason in better.reasons)


def test_more_devices_are_planned_with_what_was_learned_on_as_many() -> None:
    model = read_shape(llama(hidden_size=8192, intermediate_size=28672, num_hidden_layers=32, num_attention_heads=64))
    request = PlanRequest(device=find_device("L40S"))
    alone, two = plan(model, request), plan(model, replace(request, count=2))
    large = replace(request, learned=(seen_under(alone, 40 * GIB),))
    assert suggested(plan(model, large), "more_devices").text.startswith("2 × NVIDIA L40S")
    both = replace(large, learned=(*large.learned, seen_under(two, 40 * GIB)))
    assert suggested(plan(model, both), "more_devices").text.startswith("4 × NVIDIA L40S")


def test_an_fp8_revision_is_not_planned_with_the_overhead_of_other_weights() -> None:
    model = read_shape(llama(hidden_size=8192, intermediate_size=28672, num_hidden_layers=32, num_attention_heads=64))
    request = PlanRequest(device=find_device("L40S"))
    learned = replace(request, learned=(seen_under(plan(model, request), 40 * GIB),))
    assert suggested(plan(model, learned), "fp8_revision").text


def test_fewer_ranks_or_no_graphs_are_not_planned_with_the_overhead_of_others() -> None:
    request = PlanRequest(device=find_device("H100"), count=2)
    model = public_shape("llama-3-8b")
    learned = replace(request, learned=(seen_under(plan(model, request), GIB // 2),))
    half = plan(model, replace(learned, count=1))
    assert half.overhead.source == "first guess"
    eager = plan(model, replace(learned, enforce_eager=True))
    assert eager.overhead.source == "first guess"
