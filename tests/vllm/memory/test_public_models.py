"""Public models on the catalogue's devices, and the table of them in the documentation."""

import json
import re
from pathlib import Path

import pytest

from tests.vllm.memory.models import GIB, HERE, public_config, public_shape
from workers.vllm.memory import Plan, PlanRequest, builtin_catalogue, compute_plan, plan, read_shape

DOCUMENT = Path(__file__).parents[3] / "docs/memory.md"
MODELS = {
    "gemma-4-31b-fp8-block": ("Gemma-4-31B FP8-block", 32_768),
    "qwen3-30b-a3b-fp8": ("Qwen3-30B-A3B-FP8", 32_768),
    "glm-5-fp8": ("GLM-5-FP8", 131_072),
    "llama-3-8b": ("Llama-3-8B", 8_192),
}
DEVICES = [device for device in builtin_catalogue() if device.platform == "cuda"]


def smallest(name: str, device_key: str, context: int) -> Plan | None:
    """The plan on the fewest devices of that kind, up to 16, on which it fits."""
    device = next(device for device in DEVICES if device.key == device_key)
    for count in (1, 2, 4, 8, 16):
        made = compute_plan(public_shape(name), PlanRequest(device=device, count=count, max_model_len=context))
        if made.fits:
            return made
    return None


def row(name: str, device_key: str, context: int) -> str:
    made = smallest(name, device_key, context)
    if made is None:
        return f"| `{device_key}` | not on 16 | | | | |"
    concurrency = f"{made.max_concurrency:.1f}"
    return (
        f"| `{device_key}` | {made.tensor_parallel} | {made.weights_bytes_per_device / GIB:.1f} | "
        f"{(made.kv_cache_bytes or 0) / GIB:.1f} | {made.kv_cache_tokens:,} | {concurrency} |"
    )


def section(name: str) -> str:
    title, context = MODELS[name]
    lines = [
        f"**{title}**, requests of up to {context:,} tokens",
        "",
        "| device | how many | weights GiB each | KV GiB each | KV tokens | full requests at once |",
        "|---|---|---|---|---|---|",
    ]
    return "\n".join(lines + [row(name, device.key, context) for device in DEVICES])


@pytest.mark.parametrize("name", MODELS)
def test_the_table_in_the_documentation_is_what_is_planned(name: str) -> None:
    assert section(name) in DOCUMENT.read_text()


@pytest.mark.parametrize("file", sorted((HERE / "public").glob("*.json")), ids=lambda file: file.stem)
def test_every_public_configuration_names_its_sources(file: Path) -> None:
    content = json.loads(file.read_text())
    assert content["source"]
    assert read_shape(content["config"]).cache_layers


def test_every_reason_is_explained_in_the_documentation() -> None:
    sources = (Path(__file__).parents[3] / "workers/vllm").glob("*.py")
    codes = {code for file in sources for code in re.findall(r'Reason\(\s*"([a-z0-9_.]+)"', file.read_text())}
    assert len(codes) > 20
    document = DOCUMENT.read_text()
    assert not [code for code in codes if f"`{code}`" not in document]


def test_the_guides_formula_overstates_llama_3_by_the_heads_it_should_not_count() -> None:
    # "TP x layers x 2 x heads x head size x bytes": multiplies by TP where one divides, and counts query heads.
    model = public_shape("llama-3-8b")
    real = plan(model, PlanRequest(tensor_parallel=2, kv_cache_memory=GIB)).kv_bytes_per_token
    guides = 2 * 32 * 2 * 32 * 128 * 2
    assert guides == 16 * real
    assert real == 64 * 1024


def test_gemma_4_on_one_h200_leaves_room_that_the_guides_reserves_would_give_away() -> None:
    made = smallest("gemma-4-31b-fp8-block", "h200", 32_768)
    assert made is not None
    assert made.tensor_parallel == 1
    assert made.kv_cache_bytes is not None
    # 20 % for fragmentation, 5 GB for the system and 3 GB for the runtime would leave less.
    by_guides = (made.device_bytes or 0) * 0.8 - 8e9 - made.weights_bytes
    assert made.kv_cache_bytes > by_guides


def test_fp8_on_an_a100_is_weight_only_and_still_halves_the_weights() -> None:
    made = smallest("qwen3-30b-a3b-fp8", "a100-80", 32_768)
    assert made is not None
    assert any(reason.code == "quantization.weight_only" for reason in made.reasons)
    assert made.weights_bytes < 30.6e9 * 1.05


def test_glm_5_needs_eight_h200_or_b200() -> None:
    counts = {
        key: made.tensor_parallel for key in ("h100", "h200", "b200") if (made := smallest("glm-5-fp8", key, 131_072))
    }
    assert counts == {"h100": 16, "h200": 8, "b200": 8}


def test_counting_every_layer_as_full_attention_would_cost_gemma_4_most_of_its_tokens() -> None:
    request = PlanRequest(kv_cache_memory=50 * GIB, max_model_len=262_144, max_num_batched_tokens=8192)
    windows = plan(public_shape("gemma-4-31b-fp8-block"), request)
    text = public_config("gemma-4-31b-fp8-block")["text_config"]
    everything = plan(read_shape(text | {"layer_types": ["full_attention"] * 60}), request)
    assert (windows.kv_cache_tokens or 0) > 2 * (everything.kv_cache_tokens or 0)
