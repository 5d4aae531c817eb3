"""The KV cache as vLLM lays it out: pages, groups of layers, blocks, and how many tokens they hold.

Every layer keeps one page per block. Layers that keep different numbers of tokens (full attention, sliding windows,
recurrent states) are put into groups of equal size that draw their blocks from one pool, so all pages must be equally
large: smaller ones take more tokens per page, or are padded. The arithmetic, roundings included, is that of
`v1/core/kv_cache_utils.py` and `v1/kv_cache_interface.py` [src 0.16 to 0.32]; what changed in between is in
`memory_rules`.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from workers.vllm.attention_layers import CacheLayer
from workers.vllm.memory_rules import MemoryRules
from workers.vllm.weights_size import pipeline_stages

GPU_BLOCK_TOKENS = 16
CPU_BLOCK_TOKENS = 128
CPU_MLA_BLOCK_TOKENS = 16
SPARSE_MLA_BLOCK_TOKENS = 64
_HYBRID_MLA_ALIGNMENT = 128

FP8_DTYPES = frozenset({"fp8", "fp8_e4m3", "fp8_e5m2", "fp8_inc"})
KV_DTYPES = ("auto", "bfloat16", "float16", "float32", *sorted(FP8_DTYPES), "fp8_ds_mla", "nvfp4_ds_mla",
             "fp8_per_token_head", "int8_per_token_head", "int4_per_token_head", "nvfp4")  # fmt: skip

_LATENT_ROW_BYTES = {"fp8_ds_mla": 656, "nvfp4_ds_mla": 352}
_SCALE_BYTES = 4


@dataclass(frozen=True)
class CacheRequest:
    """What the layout depends on besides the model.

    Attributes:
        kv_dtype: a name of KV_DTYPES; "auto" is the model's own dtype.
        dtype_bytes: bytes per element of the model's dtype.
        block_tokens: tokens per block as asked for or by default, before recurrent states enlarge it.
        tensor_parallel, pipeline_parallel: how the model is divided.
        max_model_len: the longest request, in tokens.
        in_flight_tokens: tokens that may be scheduled but not finished: batched tokens x batches in flight.
        states_per_request: recurrent states that one request holds.
        speculative_tokens: draft tokens per step; they lengthen convolution windows and add states.
        kernel_tokens: the smallest block the attention kernels take, which enlarged blocks are multiples of.
    """

    kv_dtype: str
    dtype_bytes: int
    block_tokens: int
    tensor_parallel: int
    pipeline_parallel: int
    max_model_len: int
    in_flight_tokens: int
    states_per_request: int = 1
    speculative_tokens: int = 0
    kernel_tokens: int = GPU_BLOCK_TOKENS


@dataclass(frozen=True)
class LayerPage:
    """One layer's page: what kind of layer, bytes, how many tokens it covers (0 for a state), and its heads' shape."""

    kind: str
    page_bytes: int
    block_tokens: int
    window: int | None
    index: int
    shape: tuple[int, ...]


@dataclass(frozen=True)
class LayerGroup:
    """Layers that share one block table.

    Attributes:
        kind, window: what they keep.
        layers: how many real layers; padding layers are not counted.
        block_tokens: tokens per block of this group.
        blocks_per_request: blocks that one request of full length holds at most.
        page_bytes: what one block of this group takes, over its layers.
    """

    kind: str
    window: int | None
    layers: int
    block_tokens: int
    blocks_per_request: int
    page_bytes: int


@dataclass(frozen=True)
class CacheLayout:
    """The pool of blocks on one rank.

    Attributes:
        block_tokens: the engine's block size (`cache_config_info`'s `block_size`).
        bytes_per_block: bytes that one block takes on the rank that needs most.
        groups: the groups of the whole model.
        blocks_per_request: blocks that a request of full length needs, over all groups.
        bytes_per_token: what one token adds on one rank while every layer still keeps it.
        bytes_per_token_beyond_window: what one more token costs once sliding windows are full.
        state_bytes: fixed state of one request, padding included.
        padded_layers: layers' worth of memory that padding wastes in each block.
    """

    block_tokens: int
    bytes_per_block: int
    groups: tuple[LayerGroup, ...]
    blocks_per_request: int
    bytes_per_token: int
    bytes_per_token_beyond_window: int
    state_bytes: int
    padded_layers: int

    @property
    def min_bytes_for_one_request(self) -> int:
        """Pool that one request of full length needs: its blocks, and the one block that never serves anybody."""
        return (self.blocks_per_request + 1) * self.bytes_per_block


def token_bytes(layer: CacheLayer, kv_dtype: str, *, dtype_bytes: int, tensor_parallel: int) -> int:
    """Bytes that one token takes in one attention layer on one rank. ValueError for a KV dtype that isn't planned."""
    if layer.row_bytes is not None:
        return layer.row_bytes
    element = _element_bytes(kv_dtype, dtype_bytes)
    if layer.kind == "mla":
        # A latent belongs to all heads, so every rank keeps all of it.
        return _LATENT_ROW_BYTES.get(kv_dtype) or layer.key_dim * element
    heads = max(1, layer.kv_heads // tensor_parallel)
    elements = layer.key_dim + layer.value_dim
    if kv_dtype.endswith("_per_token_head"):
        packed = elements // 2 if kv_dtype.startswith("int4") else elements
        return heads * (packed + 2 * _SCALE_BYTES)
    if kv_dtype == "nvfp4":
        return heads * sum(dim // 2 + dim // 16 for dim in (layer.key_dim, layer.value_dim))
    return heads * elements * element


def _element_bytes(kv_dtype: str, dtype_bytes: int) -> int:
    if kv_dtype == "auto":
        return dtype_bytes
    if kv_dtype in FP8_DTYPES or kv_dtype.endswith("_per_token_head"):
        return 1
    known = {"bfloat16": 2, "float16": 2, "half": 2, "float32": 4, "fp8_ds_mla": 1, "nvfp4_ds_mla": 1, "nvfp4": 1}
    if kv_dtype in known:
        return known[kv_dtype]
    message = f"KV cache dtype {kv_dtype!r} is not planned; known are {', '.join(KV_DTYPES)}"
    raise ValueError(message)


def plan_layout(
    layers: Sequence[CacheLayer], request: CacheRequest, rules: MemoryRules, *, num_layers: int
) -> CacheLayout:
    """Lay out a model's KV cache.

    Args:
        layers: the cache layers of the whole model; at least one.
        request: parallelism, dtype, context and block size.
        rules: those of the engine version.
        num_layers: decoder layers, for the split into pipeline stages.

    Raises:
        ValueError: when this engine version can't lay out this mix of layers.
    """
    block_tokens = _aligned_block_tokens(layers, request)
    pages = [_page(layer, request, block_tokens) for layer in layers]
    groups, members = _group(pages, request, rules)
    stages = pipeline_stages(num_layers, request.pipeline_parallel)
    bytes_per_block, padded = _bytes_per_block(members, stages)
    kept = [(page, page.page_bytes // page.block_tokens) for page in pages if page.block_tokens]
    return CacheLayout(
        block_tokens=block_tokens,
        bytes_per_block=bytes_per_block,
        groups=groups,
        blocks_per_request=sum(group.blocks_per_request for group in groups),
        bytes_per_token=_most_per_stage([(p.index, size) for p, size in kept], stages),
        bytes_per_token_beyond_window=_most_per_stage([(p.index, s) for p, s in kept if p.window is None], stages),
        state_bytes=sum(group.blocks_per_request * bytes_per_block for group in groups if group.kind == "recurrent"),
        padded_layers=padded,
    )


def _aligned_block_tokens(layers: Sequence[CacheLayer], request: CacheRequest) -> int:
    """Tokens per block, enlarged until a recurrent state fits into an attention page."""
    states = [_state_bytes(layer, request) for layer in layers if layer.state is not None]
    # The engine sizes the block by the first attention layer it finds; models with states have only one kind.
    attention = [layer for layer in layers if layer.state is None and layer.kind != "cross"]
    if not states or not attention:
        return request.block_tokens
    per_token = token_bytes(
        attention[0], request.kv_dtype, dtype_bytes=request.dtype_bytes, tensor_parallel=request.tensor_parallel
    )
    alignment = max(request.kernel_tokens, request.block_tokens)
    if attention[0].kind == "mla":
        alignment = max(alignment, _HYBRID_MLA_ALIGNMENT)
    enlarged = alignment * math.ceil(max(states) / (alignment * per_token))
    return max(request.block_tokens, enlarged)


def _state_bytes(layer: CacheLayer, request: CacheRequest) -> int:
    if layer.state is None:
        return 0
    return layer.state.bytes_per_rank(
        ranks=request.tensor_parallel,
        dtype_bytes=request.dtype_bytes,
        speculative_tokens=request.speculative_tokens,
    )


def _page(layer: CacheLayer, request: CacheRequest, block_tokens: int) -> LayerPage:
    if layer.state is not None:
        size = _state_bytes(layer, request)
        return LayerPage("recurrent", size, 0, None, layer.index, (size,))
    per_token = token_bytes(
        layer, request.kv_dtype, dtype_bytes=request.dtype_bytes, tensor_parallel=request.tensor_parallel
    )
    kind = "full" if layer.kind in {"mla", "indexer"} else layer.kind
    window = layer.encoder_tokens if layer.kind == "cross" else layer.window
    shape = (layer.kv_heads, layer.key_dim, layer.value_dim)
    return LayerPage(kind, per_token * block_tokens, block_tokens, window, layer.index, shape)


def _blocks_per_request(page: LayerPage, request: CacheRequest) -> int:
    if page.kind == "recurrent":
        return request.states_per_request + request.speculative_tokens
    if page.kind == "full" or page.window is None:
        return math.ceil(request.max_model_len / page.block_tokens)
    if page.kind == "cross":
        return math.ceil(page.window / page.block_tokens)
    if page.kind == "chunked":
        kept = min(page.window + request.in_flight_tokens, request.max_model_len)
        return math.ceil(kept / page.block_tokens)
    kept = min(page.window - 1 + request.in_flight_tokens, request.max_model_len)
    # One more, because a window rarely starts where a block does.
    return math.ceil(kept / page.block_tokens) + 1


def _group(
    pages: list[LayerPage], request: CacheRequest, rules: MemoryRules
) -> tuple[tuple[LayerGroup, ...], list[list[LayerPage]]]:
    if _one_kind(pages):
        widest = max(pages, key=lambda page: _blocks_per_request(page, request))
        group = _describe(pages, widest, request)
        return (group,), [pages]
    buckets = _buckets(_equal_pages(pages, rules))
    counts = [len(bucket) for bucket in buckets]
    smallest, largest = min(counts), max(counts)
    # Kinds of nearly equal count are padded up; otherwise the smallest count sets the size of every group.
    size = largest if largest < smallest * rules.group_balance_factor else smallest
    groups: list[LayerGroup] = []
    members: list[list[LayerPage]] = []
    for bucket in buckets:
        count = math.ceil(len(bucket) / size)
        for number in range(count):
            share = bucket[number::count]
            members.append(share)
            groups.append(_describe(share, share[0], request))
    return tuple(groups), members


def _one_kind(pages: list[LayerPage]) -> bool:
    """Whether all layers keep the same tokens, so that one block table serves them whatever their page sizes."""
    return len({(page.kind, page.block_tokens, page.window if page.kind != "full" else None) for page in pages}) == 1


def _describe(layers: list[LayerPage], widest: LayerPage, request: CacheRequest) -> LayerGroup:
    return LayerGroup(
        kind=widest.kind,
        window=widest.window,
        layers=len(layers),
        block_tokens=widest.block_tokens,
        blocks_per_request=_blocks_per_request(widest, request),
        page_bytes=sum(page.page_bytes for page in layers),
    )


def _equal_pages(pages: list[LayerPage], rules: MemoryRules) -> list[LayerPage]:
    """Make all pages as large as the largest: by more tokens per page where that divides evenly, else by padding."""
    largest = max(page.page_bytes for page in pages)
    equal = []
    for page in pages:
        if page.page_bytes == largest:
            equal.append(page)
        elif page.kind == "recurrent":
            equal.append(replace(page, page_bytes=largest))
        elif largest % page.page_bytes == 0:
            ratio = largest // page.page_bytes
            equal.append(replace(page, page_bytes=largest, block_tokens=page.block_tokens * ratio))
        elif rules.pads_attention_pages:
            equal.append(replace(page, page_bytes=largest))
        else:
            version = ".".join(str(part) for part in rules.version)
            message = (
                f"vLLM {version} can't lay out this mix of layers: pages of {page.page_bytes:,} and {largest:,} bytes "
                "don't divide; 0.26 and later pad them"
            )
            raise ValueError(message)
    return equal


def _buckets(pages: list[LayerPage]) -> list[list[LayerPage]]:
    """Layers that are alike in every respect, in the order in which the kinds first appear."""
    buckets: dict[LayerPage, list[LayerPage]] = {}
    for page in pages:
        buckets.setdefault(replace(page, index=0), []).append(page)
    return list(buckets.values())


def _bytes_per_block(members: list[list[LayerPage]], stages: tuple[range, ...]) -> tuple[int, int]:
    """(bytes of one block on the fullest pipeline stage, padding layers in it).

    A block is as wide as the widest group's share of the stage; every stage gets the same number of blocks, which the
    stage with the widest block limits.
    """
    best, padded = 0, 0
    for stage in stages:
        widths = [sum(page.page_bytes for page in group if page.index in stage) for group in members]
        counts = [sum(page.index in stage for page in group) for group in members]
        if max(widths, default=0) > best:
            best, padded = max(widths), max(counts) * len(counts) - sum(counts)
    return best, padded


def _most_per_stage(sizes: list[tuple[int, int]], stages: tuple[range, ...]) -> int:
    per_layer: Counter[int] = Counter()
    for index, size in sizes:
        per_layer[index] += size
    return max(sum(per_layer[index] for index in stage) for stage in stages)


def count_blocks(layout: CacheLayout, kv_bytes: int) -> int:
    """Blocks that so many bytes make."""
    return max(kv_bytes, 0) // layout.bytes_per_block


def count_tokens(layout: CacheLayout, blocks: int, max_model_len: int, rules: MemoryRules) -> tuple[int, float]:
    """(tokens as the engine logs them, requests of full length at once) for so many blocks."""
    concurrency = blocks / layout.blocks_per_request
    if rules.tokens_from_concurrency:
        # In floating point and cut off, as the engine does it: the last digit is part of the logged number.
        return int(concurrency * max_model_len), concurrency
    smallest = min((group.block_tokens for group in layout.groups if group.block_tokens), default=max_model_len)
    return blocks // len(layout.groups) * smallest, concurrency


def longest_context(layers: Sequence[CacheLayer], request: CacheRequest, rules: MemoryRules, *, num_layers: int,
                    kv_bytes: int) -> int:  # fmt: skip
    """The longest request, up to the one asked for, whose blocks fit into that many bytes; 0 when none does."""
    low, high = 0, request.max_model_len
    while low < high:
        middle = (low + high + 1) // 2
        layout = plan_layout(layers, replace(request, max_model_len=middle), rules, num_layers=num_layers)
        if layout.min_bytes_for_one_request <= kv_bytes:
            low = middle
        else:
            high = middle - 1
    return low
