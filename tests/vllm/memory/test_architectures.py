"""The KV cache of every kind of architecture."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.vllm.memory.models import GIB, MIB, config, llama, public_config, public_shape, shape
from workers.vllm.kv_cache import CacheRequest, plan_layout, token_bytes
from workers.vllm.memory import PlanRequest, find_device, plan, read_shape
from workers.vllm.memory_rules import rules_for


def planned(configuration: dict[str, Any], **request: Any) -> Any:
    return plan(read_shape(configuration), PlanRequest(**({"kv_cache_memory": 4 * GIB} | request)))


@pytest.mark.parametrize(
    ("heads", "tensor", "kept"), [(8, 1, 8), (8, 4, 2), (8, 8, 1), (2, 8, 1), (1, 4, 1), (32, 2, 16)]
)
def test_kv_heads_are_divided_until_one_is_left_on_each_rank(heads: int, tensor: int, kept: int) -> None:
    made = planned(llama(num_key_value_heads=heads), tensor_parallel=tensor)
    assert made.kv_bytes_per_token == 2 * kept * 128 * 2 * 32


def test_a_configuration_without_kv_heads_has_as_many_as_query_heads() -> None:
    multi_head = llama()
    del multi_head["num_key_value_heads"]
    assert planned(multi_head).kv_bytes_per_token == 2 * 32 * 128 * 2 * 32


def test_falcons_multi_query_flag_means_one_head() -> None:
    falcon = {"model_type": "falcon", "hidden_size": 4544, "num_hidden_layers": 32, "num_attention_heads": 71,
              "multi_query": True, "new_decoder_architecture": False, "vocab_size": 65024, "dtype": "bfloat16"}  # fmt: skip
    assert planned(falcon).kv_bytes_per_token == 2 * 64 * 2 * 32


def test_latents_are_kept_whole_on_every_rank() -> None:
    one, four = (planned(config("deepseek-mla"), tensor_parallel=size) for size in (1, 4))
    assert one.kv_bytes_per_token == four.kv_bytes_per_token == 3 * 576 * 2


@pytest.mark.parametrize(("dtype", "row"), [("auto", 1152), ("fp8", 576), ("fp8_ds_mla", 656)])
def test_latent_rows_by_kv_dtype(dtype: str, row: int) -> None:
    assert planned(config("deepseek-mla"), kv_cache_dtype=dtype).kv_bytes_per_token == 3 * row


def test_the_same_fields_without_absorbed_attention_unfold_into_heads() -> None:
    minicpm = llama(model_type="minicpm3", num_attention_heads=40, num_key_value_heads=40, kv_lora_rank=256,
                    qk_nope_head_dim=64, qk_rope_head_dim=32)  # fmt: skip
    assert planned(minicpm).kv_bytes_per_token == 2 * 40 * 96 * 2 * 32


def test_glm52_builds_an_indexer_in_21_of_78_layers() -> None:
    sparse = public_config("glm-5-fp8") | {"index_topk_freq": 4, "index_skip_topk_offset": 3}
    layers = read_shape(sparse).cache_layers
    assert sum(layer.kind == "indexer" for layer in layers) == 21
    assert sum(layer.kind == "mla" for layer in layers) == 78


@pytest.mark.parametrize(("device", "asked", "stored", "row"), [
    ("H200", "auto", "auto", 1152), ("H200", "fp8", "fp8_ds_mla", 656), ("B200", "auto", "fp8", 576),
    ("RTX PRO 6000", "auto", "fp8_ds_mla", 656),
])  # fmt: skip
def test_sparse_latents_are_stored_as_the_devices_kernels_take_them(
    device: str, asked: str, stored: str, row: int
) -> None:
    request = PlanRequest(device=find_device(device), count=8, kv_cache_dtype=asked, kv_cache_memory=GIB)
    made = plan(public_shape("glm-5-fp8"), request)
    assert made.kv_cache_dtype == stored
    assert made.kv_bytes_per_token == 78 * (row + 132)


def test_a_uniform_window_caps_what_a_request_holds() -> None:
    mistral = llama(model_type="mistral", sliding_window=4096, max_position_embeddings=32768)
    made = planned(mistral, max_model_len=32768, max_num_batched_tokens=2048)
    # 0.32 on a GPU keeps two batches in flight: (4,095 + 2 x 2,048) / 16 blocks and one more.
    assert made.blocks_per_request == -(-(4095 + 4096) // 16) + 1
    assert [group.kind for group in made.groups] == ["sliding"]
    assert made.kv_bytes_per_token_beyond_window == 0


def test_a_mistral_without_the_key_has_the_window_of_its_class_and_null_has_none() -> None:
    silent = llama(model_type="mistral")
    assert planned(silent).groups[0].window == 4096
    assert planned(silent | {"sliding_window": None}).groups[0].kind == "full"


def test_qwen_ignores_its_window_unless_told_to_use_it() -> None:
    assert planned(llama(model_type="qwen2", sliding_window=32768, use_sliding_window=False)).groups[0].kind == "full"


@pytest.mark.parametrize(("version", "platform", "pipeline", "batches"), [
    ("0.25.1", "cuda", 1, 1), ("0.26.0", "cuda", 1, 2), ("0.32.0", "cuda", 1, 2), ("0.32.0", "cuda", 2, 3),
    ("0.32.0", "cpu", 1, 1), ("0.32.0", "cpu", 2, 2),
])  # fmt: skip
def test_windows_make_room_for_the_batches_in_flight(version: str, platform: Any, pipeline: int, batches: int) -> None:
    made = planned(config("gemma3-swa"), platform=platform, pipeline_parallel=pipeline, max_model_len=4096,
                   max_num_batched_tokens=512, block_size=32, engine_version=version)  # fmt: skip
    window = next(group for group in made.groups if group.kind == "sliding")
    assert window.blocks_per_request == -(-(127 + 512 * batches) // 32) + 1


def test_gemma4_keeps_keys_and_values_although_they_are_equal_and_doubles_the_smaller_pages() -> None:
    made = planned(public_config("gemma-4-31b-fp8-block"), max_model_len=32768)
    assert made.kv_bytes_per_token == (50 * 2 * 16 * 256 + 10 * 2 * 4 * 512) * 2
    full = next(group for group in made.groups if group.kind == "full")
    assert (full.block_tokens, made.block_size) == (32, 16)
    assert made.bytes_per_block == 10 * 2 * 16 * 256 * 2 * 16


def test_per_layer_overrides_of_saved_configs_equal_the_published_fields() -> None:
    saved = config("gemma4-swa")
    published = {key: value for key, value in saved.items() if key != "per_layer_config"}
    published |= {"global_head_dim": 128, "num_global_key_value_heads": 1}
    assert read_shape(saved).cache_layers == read_shape(published).cache_layers


def test_shared_layers_allocate_nothing() -> None:
    alone, shared = (
        planned(config("gemma4-swa") | {"num_kv_shared_layers": count}, platform="cpu") for count in (0, 6)
    )
    assert alone.kv_bytes_per_token == 2 * shared.kv_bytes_per_token
    assert sum(group.layers for group in shared.groups) == 6


def test_keys_and_values_may_differ_in_size() -> None:
    mimo = llama(model_type="mimo_v2_flash", num_hidden_layers=4, num_attention_heads=64, num_key_value_heads=4,
                 head_dim=192, v_head_dim=128, swa_num_key_value_heads=8, swa_head_dim=192, swa_v_head_dim=128,
                 sliding_window_size=128, hybrid_layer_pattern=[0, 1, 1, 1])  # fmt: skip
    made = planned(mimo)
    assert made.kv_bytes_per_token == (4 * 320 + 3 * 8 * 320) * 2


def test_pages_that_do_not_divide_are_padded_only_by_newer_engines() -> None:
    odd = config("gemma4-swa") | {"per_layer_config": {"05": {"head_dim": 96, "num_key_value_heads": 1},
                                                       "11": {"head_dim": 96, "num_key_value_heads": 1}}}  # fmt: skip
    assert planned(odd, platform="cpu").fits is True
    old = planned(odd, platform="cpu", engine_version="0.20.2")
    assert old.fits is False
    assert "can't lay out this mix" in old.reasons[0].text


def test_chunked_attention_keeps_one_chunk_and_the_batches_in_flight() -> None:
    scout = llama(
        model_type="llama4_text", num_hidden_layers=8, attention_chunk_size=8192, max_position_embeddings=131072
    )
    made = planned(scout, max_model_len=131072, max_num_batched_tokens=2048)
    chunked = next(group for group in made.groups if group.kind == "chunked")
    assert chunked.blocks_per_request == (8192 + 2 * 2048) // 16
    assert sum(group.layers for group in made.groups if group.kind == "chunked") == 6


@pytest.mark.parametrize(("caching", "version", "states"), [
    (None, "0.32.0", 2), (None, "0.25.1", 1), (True, "0.25.1", 2), (False, "0.32.0", 1),
])  # fmt: skip
def test_recurrent_layers_keep_a_second_state_for_prefix_caching(
    caching: bool | None, version: str, states: int
) -> None:
    made = planned(config("qwen3-next-gdn"), enable_prefix_caching=caching, engine_version=version)
    recurrent = [group for group in made.groups if group.kind == "recurrent"]
    assert {group.blocks_per_request for group in recurrent} == {states}
    assert sum(group.layers for group in recurrent) == 6


@pytest.mark.parametrize(
    ("avx512_bf16", "version", "block"), [(False, "0.32.0", 96), (True, "0.32.0", 160), (True, "0.25.1", 96)]
)
def test_a_cpus_instructions_decide_the_width_of_recurrent_states(avx512_bf16: bool, version: str, block: int) -> None:
    made = planned(config("qwen3-next-gdn"), platform="cpu", block_size=32, kv_cache_dtype="fp8_e5m2", max_model_len=2048,
                   cpu_avx512_bf16=avx512_bf16, engine_version=version)  # fmt: skip
    assert made.block_size == block


def test_draft_tokens_lengthen_states_and_add_one_each() -> None:
    plain, drafting = (planned(config("qwen3-next-gdn"), speculative_tokens=count) for count in (0, 2))
    assert drafting.blocks_per_request - plain.blocks_per_request == 2 * len(
        [group for group in plain.groups if group.kind == "recurrent"]
    )


def test_a_pure_mamba_model_costs_the_same_at_any_length() -> None:
    mamba = {"architectures": ["Mamba2ForCausalLM"], "model_type": "mamba2", "hidden_size": 2560, "num_heads": 80,
             "head_dim": 64, "state_size": 128, "n_groups": 1, "expand": 2, "conv_kernel": 4, "num_hidden_layers": 64,
             "vocab_size": 50288, "dtype": "bfloat16"}  # fmt: skip
    short, long = (planned(mamba, max_model_len=length) for length in (1024, 2048))
    state = ((5120 + 2 * 128) * 3 + 80 * 64 * 128) * 2 * 64
    assert short.bytes_per_block == long.bytes_per_block == state
    assert short.max_concurrency == long.max_concurrency == 4 * GIB // state
    assert short.kv_bytes_per_token == 0


def test_mamba_groups_are_repeated_when_there_are_fewer_than_ranks() -> None:
    nemotron = {"model_type": "nemotron_h", "hidden_size": 4096, "mamba_num_heads": 128, "mamba_head_dim": 64,
                "ssm_state_size": 128, "n_groups": 2, "conv_kernel": 4, "hybrid_override_pattern": "M-M*-",
                "num_hidden_layers": 5, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128,
                "vocab_size": 131072, "dtype": "bfloat16"}  # fmt: skip
    layers = read_shape(nemotron).cache_layers
    assert [layer.kind for layer in layers] == ["recurrent", "recurrent", "full"]
    state = layers[0].state
    assert state is not None
    # Eight ranks need each group's input: 2 groups become 8, and the state itself is float32 in these models.
    assert state.bytes_per_rank(ranks=8, dtype_bytes=2) == (8192 + 256 * 8) // 8 * 3 * 2 + 128 * 64 * 128 // 8 * 4


def test_whisper_keeps_the_encoders_positions_too() -> None:
    whisper = {"model_type": "whisper", "architectures": ["WhisperForConditionalGeneration"], "d_model": 1280,
               "decoder_layers": 4, "decoder_attention_heads": 20, "encoder_layers": 32, "max_source_positions": 1500,
               "max_target_positions": 448, "vocab_size": 51866, "is_encoder_decoder": True, "dtype": "float16"}  # fmt: skip
    made = planned(whisper)
    assert made.max_model_len == 448
    assert {group.kind: group.blocks_per_request for group in made.groups} == {"full": 28, "cross": 94}


@pytest.mark.parametrize("configuration", [
    {"architectures": ["BertModel"], "model_type": "bert", "hidden_size": 384, "intermediate_size": 1536,
     "num_hidden_layers": 12, "num_attention_heads": 12, "max_position_embeddings": 512, "vocab_size": 30522},
    llama(is_causal=False, architectures=["LlamaBidirectionalModel"]),
    config("gemma3-swa") | {"use_bidirectional_attention": True},
])  # fmt: skip
def test_encoders_have_no_kv_cache(configuration: dict[str, Any]) -> None:
    made = plan(read_shape(configuration), PlanRequest(device=find_device("L4")))
    assert made.kv_bytes_per_token == made.kv_cache_tokens == made.min_kv_bytes_for_one_request == 0
    assert made.fits is True
    assert any(reason.code == "kv_cache.none" for reason in made.reasons)


def test_a_multimodal_configuration_is_planned_by_its_language_model() -> None:
    inner = config("llama-gqa")
    outer = {"architectures": ["LlavaForConditionalGeneration"], "model_type": "llava", "text_config": inner,
             "vision_config": {"hidden_size": 64, "num_hidden_layers": 2, "intermediate_size": 128}}  # fmt: skip
    assert read_shape(outer).cache_layers == read_shape(inner).cache_layers
    assert read_shape(outer).weights.total_bytes > read_shape(inner).weights.total_bytes


def test_a_sparse_multimodal_text_config_is_filled_in_from_its_class() -> None:
    gemma = {"architectures": ["Gemma3ForConditionalGeneration"], "model_type": "gemma3",
             "text_config": {"model_type": "gemma3_text", "hidden_size": 2560, "intermediate_size": 10240,
                             "num_hidden_layers": 34, "sliding_window": 1024}}  # fmt: skip
    read = read_shape(gemma)
    assert (read.attention_heads, read.kv_heads, read.head_dim, read.vocab_size) == (8, 4, 256, 262208)
    assert [layer.kind for layer in read.cache_layers][:6] == ["sliding"] * 5 + ["full"]


def test_pipeline_stages_divide_the_cache_and_the_widest_stage_decides() -> None:
    one, two, three = (planned(config("llama-gqa"), pipeline_parallel=stages) for stages in (1, 2, 3))
    assert one.bytes_per_block == 2 * two.bytes_per_block == 3 * three.bytes_per_block
    uneven = planned(config("llama-gqa"), pipeline_parallel=4)  # 1 + 2 + 2 + 1 layers
    assert uneven.bytes_per_block * 3 == one.bytes_per_block


def test_a_float32_checkpoint_is_cached_at_sixteen_bits() -> None:
    assert planned(llama(dtype="float32")).kv_bytes_per_token == planned(llama()).kv_bytes_per_token


def test_the_checkpoints_own_kv_scheme_is_taken_unless_another_is_asked_for() -> None:
    scheme = {"quant_method": "compressed-tensors", "kv_cache_scheme": {"num_bits": 8, "type": "float"},
              "config_groups": {"group_0": {"weights": {"num_bits": 8, "type": "float", "strategy": "tensor"}}}}  # fmt: skip
    quantized = llama(quantization_config=scheme)
    assert planned(quantized).kv_cache_dtype == "fp8"
    assert planned(quantized).kv_bytes_per_token * 2 == planned(quantized, kv_cache_dtype="bfloat16").kv_bytes_per_token


@pytest.mark.parametrize(("dtype", "per_head"), [
    ("fp8_per_token_head", 256 + 8), ("int8_per_token_head", 256 + 8), ("int4_per_token_head", 128 + 8),
    ("nvfp4", 2 * (64 + 8)),
])  # fmt: skip
def test_packed_kv_dtypes_carry_their_scales(dtype: str, per_head: int) -> None:
    layer = read_shape(llama()).cache_layers[0]
    assert token_bytes(layer, dtype, dtype_bytes=2, tensor_parallel=1) == 8 * per_head


def test_an_unknown_kv_dtype_is_a_reason_and_no_crash() -> None:
    made = planned(llama(), kv_cache_dtype="fp3")
    assert made.fits is False
    assert "'fp3' is not planned" in made.reasons[0].text


@pytest.mark.parametrize(("missing", "words"), [
    ("num_hidden_layers", "no num_hidden_layers"), ("num_attention_heads", "no num_attention_heads"),
])  # fmt: skip
def test_a_configuration_that_does_not_determine_the_cache_says_what_is_missing(missing: str, words: str) -> None:
    broken = llama(model_type="something_new", num_key_value_heads=None)
    del broken[missing]
    with pytest.raises(ValueError, match=words):
        read_shape(broken)


def test_compressed_attention_is_refused_rather_than_guessed() -> None:
    with pytest.raises(ValueError, match="not modelled"):
        read_shape(llama(model_type="deepseek_v4", compress_ratios=[4, 4]))


@settings(max_examples=25, deadline=None)
@given(
    kv_mib=st.integers(1, 2048),
    length=st.integers(1, 4096),
    name=st.sampled_from(["llama-gqa", "gemma3-swa", "gemma4-swa", "qwen3-next-gdn", "deepseek-mla"]),
    tensor=st.sampled_from([1, 2]),
)
def test_what_fits_keeps_fitting_with_more_memory_and_shorter_requests(
    kv_mib: int, length: int, name: str, tensor: int
) -> None:
    model = shape(name)
    layout = plan_layout(
        model.cache_layers, CacheRequest("auto", 2, 64, tensor, 1, length, 512), rules_for("0.32.0"),
        num_layers=model.num_layers,
    )  # fmt: skip
    shorter = plan_layout(
        model.cache_layers, CacheRequest("auto", 2, 64, tensor, 1, max(length // 2, 1), 512), rules_for("0.32.0"),
        num_layers=model.num_layers,
    )  # fmt: skip
    assert shorter.min_bytes_for_one_request <= layout.min_bytes_for_one_request
    made = plan(model, PlanRequest(kv_cache_memory=kv_mib * MIB, max_model_len=length, tensor_parallel=tensor))
    more = plan(model, PlanRequest(kv_cache_memory=2 * kv_mib * MIB, max_model_len=length, tensor_parallel=tensor))
    assert more.kv_cache_tokens >= made.kv_cache_tokens  # type: ignore[operator]
    assert more.fits or not made.fits
    assert made.num_blocks * made.bytes_per_block <= kv_mib * MIB  # type: ignore[operator]
