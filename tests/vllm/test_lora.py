"""What arguments say about adapters, what that costs, and which adapters can't belong to a model."""

import pytest

from workers.vllm.lora import LoraSettings, Widths, misfits, settings_of, slot_bytes, widths_of

SMOLLM2 = {
    "hidden_size": 576, "num_attention_heads": 9, "num_key_value_heads": 3, "intermediate_size": 1536,
    "num_hidden_layers": 30,
}  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], LoraSettings(enabled=False)),
        (["--enable-lora"], LoraSettings(enabled=True, max_rank=16, at_once=1)),
        (["--enable_lora", "--max-lora-rank", "64"], LoraSettings(enabled=True, max_rank=64)),
        (["--enable-lora", "--max-loras=4"], LoraSettings(enabled=True, at_once=4)),
        (["--enable-lora", "--no-enable-lora"], LoraSettings(enabled=False)),
        (["--enable-lora=false"], LoraSettings(enabled=False)),
        (["--enable-lora", "-tp", "2"], LoraSettings(enabled=True, tensor_parallel=2)),
        (
            ["--enable-lora", "--lora-modules", "a=/x", '{"name": "b", "path": "/y"}', "--max-loras", "2"],
            LoraSettings(enabled=True, at_once=2, static=("a", "b")),
        ),
    ],
)
def test_the_last_word_about_adapters_counts(arguments: list[str], expected: LoraSettings) -> None:
    assert settings_of(arguments) == expected


def test_room_is_kept_for_every_linear_module_whatever_is_loaded() -> None:
    settings = LoraSettings(enabled=True, max_rank=16, at_once=2)
    one_layer = (576 + 576) + 2 * (576 + 192) + (576 + 576) + 3 * (576 + 1536)
    assert slot_bytes(widths_of(SMOLLM2), settings) == 2 * 16 * 30 * one_layer * 2
    assert slot_bytes(widths_of(SMOLLM2), LoraSettings(enabled=False)) == 0
    assert slot_bytes(widths_of({}), settings) == 0


def test_only_the_side_that_the_base_divides_is_divided_among_devices() -> None:
    model = Widths(layers=1, hidden=100, heads=2, kv_heads=2, head_dim=50, inner=200)
    whole = slot_bytes(model, LoraSettings(enabled=True, max_rank=1))
    halves = slot_bytes(model, LoraSettings(enabled=True, max_rank=1, tensor_parallel=2))
    assert (whole, halves) == (2 * (700 + 1000), 2 * (700 + 500))


@pytest.mark.parametrize(
    ("adapter", "reason"),
    [
        ({"layers": 30, "modules": {"q_proj": [576, 576], "v_proj": [576, 192], "down_proj": [1536, 576]}}, ""),
        ({"layers": 32, "modules": {}}, "it changes layer 31, and the model has 30 layers"),
        ({"layers": 2, "modules": {"q_proj": [2048, 2048]}}, "an input of width 2048, the model's has 576"),
        ({"layers": 2, "modules": {"v_proj": [576, 576]}}, "an output of width 576, the model's has 192"),
        ({"layers": 2, "modules": {"o_proj": [576, 2048]}}, "an output of width 2048, the model's has 576"),
        ({"layers": 2, "modules": {"something_else": [1, 2]}}, ""),
        ({"layers": 2, "modules": {"q_proj": "nonsense"}}, ""),
    ],
)
def test_an_adapter_of_other_widths_or_more_layers_belongs_to_another_model(adapter: dict, reason: str) -> None:
    found = misfits(adapter, SMOLLM2)
    assert [reason in one for one in found] == ([True] if reason else [])


def test_what_latent_attention_makes_wider_is_not_compared() -> None:
    config = {"text_config": SMOLLM2 | {"kv_lora_rank": 64}}
    assert misfits({"layers": 2, "modules": {"v_proj": [64, 4096], "q_proj": [576, 9000]}}, config) == []
