"""Will it fit: a model's memory planned to the token, before anything starts.

`plan` takes a frozen `ModelShape` and a frozen `PlanRequest` and gives a frozen `Plan`; nothing is read, written or asked
on the way, so the console's form can call it at every keystroke with live free memory, strangers' bytes and the overhead
that past launches showed. `read_model` makes the shape from a directory.

How the sum is made is in docs/memory.md; the modules it is made of:

- `attention_layers`, `recurrent_state`: which layers keep a KV cache, and of what shape.
- `kv_cache`: pages, groups, blocks, tokens. `memory_rules`: what changed between engine versions.
- `weights_size`, `parameter_count`: weights per rank, measured or estimated.
- `overhead`: everything else, guessed first and learned then.
- `plan_defaults`: what the engine decides about arguments left out.
- `compatibility`: quantisation, dtypes and parallel sizes against device and version.
- `suggestions`: changes that were planned too.
"""

from collections.abc import Iterable
from dataclasses import replace

from workers.vllm.devices import Device, builtin_catalogue, device_of_bytes, find_device, merged_catalogue, parse_bytes
from workers.vllm.memory_rules import NEWEST_KNOWN_VERSION
from workers.vllm.model_directory import read_model
from workers.vllm.model_shape import ModelShape, read_shape
from workers.vllm.overhead import ADAPTER_ROOM, Conditions, LearnedResidual, Overhead, learn, residual
from workers.vllm.plan_types import MeasuredLayouts, Plan, PlanRequest, Reason, Suggestion
from workers.vllm.planning import compute_plan
from workers.vllm.shape_record import record_of, shape_from
from workers.vllm.suggestions import suggest

__all__ = [
    "ADAPTER_ROOM",
    "NEWEST_KNOWN_VERSION",
    "Conditions",
    "Device",
    "LearnedResidual",
    "MeasuredLayouts",
    "ModelShape",
    "Overhead",
    "Plan",
    "PlanRequest",
    "Reason",
    "Suggestion",
    "builtin_catalogue",
    "compute_plan",
    "device_of_bytes",
    "find_device",
    "learn",
    "merged_catalogue",
    "parse_bytes",
    "plan",
    "read_model",
    "read_shape",
    "record_of",
    "residual",
    "shape_from",
]


def plan(model: ModelShape, request: PlanRequest, catalogue: Iterable[Device] | None = None) -> Plan:
    """Plan a model on a device, with suggestions.

    Args:
        model: what `read_model` or `read_shape` found.
        request: devices, arguments, engine version, and what is known of the host.
        catalogue: devices that suggestions may name; the built-in ones when None.

    Raises:
        ValueError: when the request makes no sense in itself (a size below one, a version that can't be read). What
            merely doesn't fit or run is a `Reason` of the plan.
    """
    first = compute_plan(model, request)
    return replace(first, suggestions=suggest(model, request, first, catalogue))
