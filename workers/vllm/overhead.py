"""What an engine uses besides weights and KV cache, on each device.

It can't be computed from a configuration: it depends on kernels, drivers and what the profiling run happens to allocate.
So the plan starts with a guess, made of parts that can be named, and the truth of every launch replaces it: the residual
(utilisation x total - weights - logged KV cache) per model, device, engine version and the conditions it was seen under.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from workers.vllm.devices import OverheadClass
from workers.vllm.memory_rules import MemoryRules
from workers.vllm.model_shape import ModelShape

GIB = 2**30

# Memory that a process takes on a device before it has done anything: context, kernel images, library workspaces.
# First guesses, rounded up from public launch logs: [context, communication per rank with TP or PP, CUDA graphs].
_GUESS_GIB: dict[OverheadClass, tuple[float, float, float]] = {
    "datacenter": (0.6, 1.1, 1.0),
    "workstation": (0.5, 0.6, 0.7),
    "cpu": (2.0, 0.3, 0.0),
}
_SAFETY = 1.15
ADAPTER_ROOM = "room for adapters"
"""Name of the part that follows from the arguments: no residual holds it, each plan adds its own."""


@dataclass(frozen=True)
class OverheadPart:
    """One named part of the overhead, in bytes."""

    name: str
    nbytes: int


@dataclass(frozen=True)
class Conditions:
    """What the overhead of one model on one device with one engine version depends on.

    Attributes:
        batched_tokens: they decide how large activations become.
        tensor_parallel, pipeline_parallel: ranks that communicate, and how the layers are divided.
        eager: whether CUDA graphs are off.
    """

    batched_tokens: int
    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    eager: bool = False


@dataclass(frozen=True)
class LearnedResidual:
    """What launches of this model on this device, with this engine and under these conditions, really used.

    Attributes:
        nbytes: the median over those launches, per device.
        spread_bytes: half the distance between the smallest and the largest.
        launches: how many there were.
        under: the conditions they ran under; None where it holds for all.
    """

    nbytes: int
    spread_bytes: int
    launches: int
    under: Conditions | None = None


@dataclass(frozen=True)
class Overhead:
    """Bytes per device besides weights and KV cache.

    Attributes:
        nbytes: the number to plan with.
        spread_bytes: how far off it may be.
        source: "first guess" or "learned".
        parts: what a guess is made of; of a learned one only what was added to it.
        launches: how many a learned one is from.
    """

    nbytes: int
    spread_bytes: int
    source: str
    parts: tuple[OverheadPart, ...] = ()
    launches: int = 0


def learn(residuals: Sequence[int], under: Conditions | None = None) -> LearnedResidual:
    """What the residuals of past launches, all under the same conditions, amount to. ValueError for none."""
    if not residuals:
        message = "nothing was launched yet, so there is nothing to learn from"
        raise ValueError(message)
    ordered = sorted(residuals)
    # The upper of the two middle ones: it is better to plan with a little too much overhead.
    return LearnedResidual(ordered[len(ordered) // 2], (ordered[-1] - ordered[0]) // 2, len(ordered), under)


def residual(*, budget_bytes: int, weights_bytes: int, kv_bytes: int) -> int:
    """What a launch used besides weights and KV cache: its budget (utilisation x total) minus both, per device.

    An engine counts the room for adapters among the weights that it logs, so the residual is without it.
    """
    return budget_bytes - weights_bytes - kv_bytes


def estimate_overhead(
    model: ModelShape,
    rules: MemoryRules,
    *,
    overhead_class: OverheadClass,
    batched_tokens: int,
    sequences: int,
    tensor_parallel: int,
    pipeline_parallel: int,
    eager: bool,
    adapter_slots: int,
    learned: Sequence[LearnedResidual],
) -> Overhead:
    """The overhead on one device: the one learned under these conditions if there is one, else the guess of its class."""
    conditions = Conditions(batched_tokens, tensor_parallel, pipeline_parallel, eager)
    seen = next((one for one in learned if one.under in (None, conditions)), None)
    room = (OverheadPart(ADAPTER_ROOM, adapter_slots),) if adapter_slots else ()
    if seen is not None:
        return Overhead(seen.nbytes + adapter_slots, seen.spread_bytes, "learned", room, seen.launches)
    context, link, graphs = _GUESS_GIB[overhead_class]
    parts = [OverheadPart("context and kernels", round(context * GIB))]
    if tensor_parallel * pipeline_parallel > 1:
        parts.append(OverheadPart("communication", round(link * GIB)))
    if overhead_class != "cpu":
        activations = _activation_bytes(model, batched_tokens, sequences, tensor_parallel)
        parts.append(OverheadPart("activations", activations))
        if graphs and rules.counts_cuda_graphs and not eager:
            parts.append(OverheadPart("CUDA graphs", round(graphs * GIB)))
    parts += room
    total = sum(part.nbytes for part in parts)
    return Overhead(total, total // 3, "first guess", tuple(parts))


def _activation_bytes(model: ModelShape, batched_tokens: int, sequences: int, tensor_parallel: int) -> int:
    """Peak of the profiling run: either the widest layer over all batched tokens, or the logits of all sequences."""
    hidden = 4 * model.hidden_size
    inner = 2 * model.intermediate_size // tensor_parallel
    layers = batched_tokens * (hidden + inner) * model.dtype_bytes
    # Logits are gathered on every rank and sampled in float32, with one working copy.
    logits = min(sequences, batched_tokens) * model.vocab_size * 2 * 4
    return round(max(layers, logits) * _SAFETY)
