"""How many bytes a model's weights take: altogether, and on the fullest rank under tensor and pipeline parallelism.

Works on safetensors headers (name, dtype, shape, bytes), never on the data. What a rank holds follows vLLM's layers:
linear layers are divided over the tensor-parallel ranks, key/value projections only as far as there are heads, norms,
routers and low-rank inputs are repeated on each rank, and the vocabulary is padded to a multiple of 64.
"""

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

Source = Literal["headers", "index", "estimated"]

VOCABULARY_PADDING = 64

DTYPE_BITS = {
    "F64": 64, "F32": 32, "F16": 16, "BF16": 16, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "I64": 64, "I32": 32,
    "I16": 16, "I8": 8, "U64": 64, "U32": 32, "U16": 16, "U8": 8, "BOOL": 8, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6,
}  # fmt: skip

_LAYER = re.compile(r"(?:^|\.)(?:layers|h|blocks|block|layer)\.(\d+)\.")
_TOWER = re.compile(r"(?:^|\.)(?:vision_tower|vision_model|visual|vision|audio_tower|audio_model|audio|multi_modal_)")
_EMBEDDING = re.compile(r"(?:^|\.)(?:embed_tokens|word_embeddings|wte|tok_embeddings|embed_in)\.weight$")
_HEAD = re.compile(r"(?:^|\.)(?:lm_head|embed_out|output_layer)\.weight$")
_KEY_VALUE = re.compile(r"\.(?:k_proj|v_proj|key|value)\.")
_REPLICATED = re.compile(
    r"norm|\.(?:q_a_proj|kv_a_proj_with_mqa|fused_qkv_a_proj|indexer|gate|router|shared_expert_gate|e_score)\b"
    r"|per_layer_(?:model_projection|input_gate|projection)|embed_tokens_per_layer|altup|laurel|position_embedding"
)
_LATENTS = re.compile(r"\.kv_b_proj\.(?:weight|weight_packed|qweight)$")
_PLAIN_DTYPES = frozenset({"F64", "F32", "F16", "BF16"})
# vLLM keeps these at full precision whatever the model's dtype is.
_FULL_PRECISION = re.compile(r"scale|e_score_correction_bias|A_log|\.dt_bias|zero_point|\bzeros\b|rotary|inv_freq")


@dataclass(frozen=True)
class TensorHeader:
    """One entry of a safetensors header: name, dtype as written there, shape, and bytes of its data."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    nbytes: int


@dataclass(frozen=True)
class Share:
    """Bytes by how tensor parallelism divides them.

    Attributes:
        sharded: divided by the number of ranks.
        by_kv_head: divided by the number of ranks, but by no more than there are key/value heads.
        replicated: whole on every rank.
    """

    sharded: int = 0
    by_kv_head: int = 0
    replicated: int = 0

    def plus(self, other: "Share") -> "Share":
        """The sum of both."""
        return Share(
            self.sharded + other.sharded, self.by_kv_head + other.by_kv_head, self.replicated + other.replicated
        )

    def on_rank(self, *, ranks: int, kv_heads: int) -> int:
        """Bytes on one of so many tensor-parallel ranks."""
        kv_ranks = min(ranks, max(kv_heads, 1))
        return math.ceil(self.sharded / ranks) + math.ceil(self.by_kv_head / kv_ranks) + self.replicated

    @property
    def total(self) -> int:
        """Bytes without parallelism."""
        return self.sharded + self.by_kv_head + self.replicated


@dataclass(frozen=True)
class Vocabulary:
    """An embedding or output matrix: rows are tokens. `row_bytes` is 0 when the model has none of its own."""

    rows: int = 0
    row_bytes: int = 0

    def on_rank(self, ranks: int) -> int:
        """Bytes on one rank, after padding the rows to a multiple of 64."""
        padded = -(-self.rows // VOCABULARY_PADDING) * VOCABULARY_PADDING
        return math.ceil(padded / ranks) * self.row_bytes

    @property
    def total(self) -> int:
        """Bytes as stored."""
        return self.rows * self.row_bytes


@dataclass(frozen=True)
class WeightSizes:
    """The weights that the engine loads.

    Attributes:
        source: where the sizes are from: tensor headers, the index's total, or an estimate from the configuration.
        layers: what each decoder layer holds, by layer number.
        outside: what belongs to no layer (towers, norms, projections) and is on the first stage.
        embedding, head: the vocabulary matrices; a tied head has no bytes of its own.
        tied: whether the output matrix is the embedding.
        unloaded_bytes: tensors the engine leaves on disk (draft layers of multi-token prediction).
        adapter_bytes: adapter files beside the weights; loaded only when a deployment asks for them.
        latents_quantized: whether the headers have a quantised projection of latent attention; None where they weren't
            read, or have none.
    """

    source: Source
    layers: tuple[Share, ...]
    outside: Share
    embedding: Vocabulary
    head: Vocabulary
    tied: bool
    unloaded_bytes: int = 0
    adapter_bytes: int = 0
    latents_quantized: bool | None = None

    @property
    def total_bytes(self) -> int:
        """Bytes of one copy of the weights as loaded, a tied matrix counted once."""
        layers = sum(share.total for share in self.layers)
        return layers + self.outside.total + self.embedding.total + self.head.total

    def on_fullest_rank(self, *, tensor_parallel: int, pipeline_parallel: int, kv_heads: int) -> int:
        """Bytes on the rank that holds most of them."""
        stages = pipeline_stages(len(self.layers), pipeline_parallel)
        return max(
            self._on_stage(number, stage, len(stages), tensor_parallel, kv_heads) for number, stage in enumerate(stages)
        )

    def _on_stage(self, number: int, stage: range, stages: int, ranks: int, kv_heads: int) -> int:
        held = sum(self.layers[index].on_rank(ranks=ranks, kv_heads=kv_heads) for index in stage)
        first, last = number == 0, number == stages - 1
        if first:
            held += self.outside.on_rank(ranks=ranks, kv_heads=kv_heads) + self.embedding.on_rank(ranks)
        if last:
            # The last stage needs the output matrix; a tied one is a second copy there unless it is the first stage too.
            own_head = self.embedding if self.tied and not first else self.head
            held += own_head.on_rank(ranks)
        return held

    def scaled_to(self, total_bytes: int, source: Source) -> "WeightSizes":
        """The same proportions with another total, for when only the total is known."""
        factor = total_bytes / max(self.total_bytes, 1)

        def scale(share: Share) -> Share:
            return Share(*(round(part * factor) for part in (share.sharded, share.by_kv_head, share.replicated)))

        return replace(
            self,
            source=source,
            layers=tuple(scale(share) for share in self.layers),
            outside=scale(self.outside),
            embedding=replace(self.embedding, row_bytes=round(self.embedding.row_bytes * factor)),
            head=replace(self.head, row_bytes=round(self.head.row_bytes * factor)),
        )


def pipeline_stages(layers: int, stages: int) -> tuple[range, ...]:
    """Which layers each pipeline stage runs, as vLLM splits them.

    A remainder goes to the stages before the last one, from the back: the first and the last hold the vocabulary too.
    """
    counts = [layers // stages] * stages
    for extra in range(layers % stages):
        counts[-(extra + 2) % stages] += 1
    starts = [sum(counts[:number]) for number in range(stages)]
    return tuple(range(start, start + count) for start, count in zip(starts, counts, strict=True))


def sum_headers(
    tensors: Iterable[TensorHeader], *, layers: int, tied: bool | None, dtype_bytes: int, quantized: bool
) -> WeightSizes:
    """Sort tensors into what each rank will hold.

    Args:
        tensors: the headers of every file that the engine reads.
        layers: decoder layers of the model; tensors of later ones are draft layers, which stay on disk.
        tied: `tie_word_embeddings`; None when neither the configuration nor its class says.
        dtype_bytes: bytes per element the engine runs at; float32 checkpoints are loaded at that width.
        quantized: whether the checkpoint is quantised, in which case float32 tensors are scales and stay as they are.
    """
    shares = [Share() for _ in range(layers)]
    outside, embedding, head, unloaded = Share(), Vocabulary(), Vocabulary(), 0
    latents_quantized = None
    for tensor in tensors:
        nbytes = _loaded_bytes(tensor, dtype_bytes=dtype_bytes, quantized=quantized)
        tower = _TOWER.search(tensor.name) is not None
        layer = None if tower else _LAYER.search(tensor.name)
        if tensor.name.startswith("mtp.") or (layer is not None and int(layer[1]) >= layers):
            unloaded += nbytes
        elif layer is not None:
            if _LATENTS.search(tensor.name):
                latents_quantized = tensor.dtype not in _PLAIN_DTYPES
            shares[int(layer[1])] = shares[int(layer[1])].plus(_share(tensor, nbytes))
        elif not tower and _EMBEDDING.search(tensor.name) and tensor.shape:
            embedding = Vocabulary(tensor.shape[0], nbytes // max(tensor.shape[0], 1))
        elif not tower and _HEAD.search(tensor.name) and tensor.shape:
            head = Vocabulary(tensor.shape[0], nbytes // max(tensor.shape[0], 1))
        else:
            outside = outside.plus(_share(tensor, nbytes))
    is_tied = bool(tied) if tied is not None else not head.rows
    if is_tied:
        embedding, head = (embedding if embedding.rows else head), Vocabulary()
    return WeightSizes(
        "headers", tuple(shares), outside, embedding, head, is_tied, unloaded, latents_quantized=latents_quantized
    )


def _loaded_bytes(tensor: TensorHeader, *, dtype_bytes: int, quantized: bool) -> int:
    if tensor.dtype != "F32" or quantized or _FULL_PRECISION.search(tensor.name):
        return tensor.nbytes
    return tensor.nbytes // 4 * dtype_bytes


def _share(tensor: TensorHeader, nbytes: int) -> Share:
    if len(tensor.shape) < 2 or _REPLICATED.search(tensor.name):
        return Share(replicated=nbytes)
    if _KEY_VALUE.search(tensor.name) and "expert" not in tensor.name:
        return Share(by_kv_head=nbytes)
    return Share(sharded=nbytes)
