"""The engine's own memory: guessed first, learned from launches, and never mixed up."""

from dataclasses import replace

import pytest

from tests.vllm.memory.models import GIB, llama, public_shape
from workers.vllm.lora import LoraSettings
from workers.vllm.memory import PlanRequest, find_device, learn, plan, read_shape, residual


def test_the_guess_is_named_a_guess_and_adds_up_from_its_parts() -> None:
    made = plan(public_shape("llama-3-8b"), PlanRequest(device=find_device("H100")))
    assert made.overhead.source == "first guess"
    assert made.overhead_bytes == sum(part.nbytes for part in made.overhead.parts)
    assert any(reason.code == "overhead.first_guess" for reason in made.reasons)
    assert made.overhead.spread_bytes > 0


def test_the_sum_of_a_plan_is_the_budget() -> None:
    made = plan(public_shape("llama-3-8b"), PlanRequest(device=find_device("H100"), gpu_memory_utilization=0.9))
    assert made.budget_bytes is not None
    assert made.kv_cache_bytes is not None
    assert made.weights_bytes_per_device + made.overhead_bytes + made.kv_cache_bytes == made.budget_bytes
    device = find_device("H100")
    assert device is not None
    assert made.budget_bytes == pytest.approx(0.9 * (device.memory_bytes or 0), abs=1)


def test_the_residual_of_a_launch_gives_back_its_kv_cache_exactly() -> None:
    request = PlanRequest(device=find_device("H100"), engine_version="0.32.0")
    first = plan(public_shape("llama-3-8b"), request)
    assert first.budget_bytes is not None
    logged_kv = 53_123_456_789
    left = residual(budget_bytes=first.budget_bytes, weights_bytes=first.weights_bytes_per_device, kv_bytes=logged_kv)
    second = plan(public_shape("llama-3-8b"), PlanRequest(device=find_device("H100"), learned=(learn([left]),)))
    assert second.kv_cache_bytes == logged_kv
    assert second.overhead.source == "learned"
    assert "as learned from one launch here" in " ".join(second.as_json()["reasons"])


def test_what_is_learned_is_the_middle_of_the_launches_with_their_spread() -> None:
    learned = learn([3 * GIB, 2 * GIB, 4 * GIB])
    assert (learned.nbytes, learned.spread_bytes, learned.launches) == (3 * GIB, GIB, 3)
    with pytest.raises(ValueError, match="nothing was launched"):
        learn([])


@pytest.mark.parametrize(
    ("version", "eager", "graphs"), [("0.20.2", False, False), ("0.21.0", False, True), ("0.32.0", True, False)]
)
def test_cuda_graphs_come_out_of_the_kv_cache_from_0_21_on(version: str, eager: bool, graphs: bool) -> None:
    request = PlanRequest(device=find_device("L4"), engine_version=version, enforce_eager=eager)
    parts = {part.name for part in plan(read_shape(llama()), request).overhead.parts}
    assert ("CUDA graphs" in parts) is graphs


def test_more_ranks_talk_and_larger_batches_take_more() -> None:
    model = read_shape(llama())
    alone, together = (
        plan(model, PlanRequest(device=find_device("L40S"), tensor_parallel=size)).overhead for size in (1, 2)
    )
    assert "communication" in {part.name for part in together.parts} - {part.name for part in alone.parts}
    small, large = (
        plan(model, PlanRequest(device=find_device("L40S"), max_num_batched_tokens=tokens)).overhead_bytes
        for tokens in (2048, 32768)
    )
    assert large > small


def test_a_public_recipes_glm_leaves_about_the_kv_cache_it_reports() -> None:
    # vllm-project/recipes#893: 8 x H200, vLLM 0.28, FP8 weights of a GLM-5 leave 25.94 GiB per rank for the KV cache.
    made = plan(public_shape("glm-5-fp8"), PlanRequest(device=find_device("H200"), count=8, engine_version="0.28.0"))
    assert made.kv_cache_bytes is not None
    assert made.kv_cache_bytes / GIB == pytest.approx(25.94, rel=0.5)  # a first guess, and another GLM-5 point release


def test_room_for_adapters_comes_out_of_the_kv_cache_where_an_engine_takes_them() -> None:
    model, device = public_shape("llama-3-8b"), find_device("H100")
    without = plan(model, PlanRequest(device=device))
    taking = plan(model, PlanRequest(device=device, lora=LoraSettings(enabled=True, max_rank=64, at_once=4)))
    room = next(part.nbytes for part in taking.overhead.parts if part.name == "room for adapters")
    assert room == pytest.approx(1.25 * GIB, rel=0.01)
    assert without.kv_cache_bytes is not None
    assert taking.kv_cache_bytes == without.kv_cache_bytes - room
    assert "room for adapters" not in {part.name for part in without.overhead.parts}


def test_room_for_adapters_is_added_to_what_was_learned_without_them() -> None:
    model = public_shape("llama-3-8b")
    request = PlanRequest(device=find_device("H100"), learned=(learn([3 * GIB]),))
    without = plan(model, request)
    taking = plan(model, replace(request, lora=LoraSettings(enabled=True, max_rank=64, at_once=4)))
    assert without.overhead_bytes == 3 * GIB
    assert taking.overhead.source == "learned"
    assert taking.overhead_bytes - without.overhead_bytes == pytest.approx(1.25 * GIB, rel=0.01)
    assert "room for adapters 1.2 GiB added" in " ".join(reason.text for reason in taking.reasons)
