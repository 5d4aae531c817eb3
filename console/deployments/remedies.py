"""From a diagnosis to what Slipway itself can do about it: pure, from frozen values, so that each rule can be tested.

A remedy is only offered where the log names the number that it needs, or where nothing has to be guessed. What needs a
person's judgement (another model, more memory, a token) stays a sentence of the diagnosis.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from console.deployments.pasting import chunks


class Kind(StrEnum):
    """What carrying a remedy out means."""

    ARGUMENTS = "arguments"
    """The next spec has other arguments or variables."""
    PORT = "port"
    """The next spec leaves the port to the host."""
    ENGINE = "engine"
    """The next spec names another engine of the same host."""
    ROLL_BACK = "roll_back"
    """The spec that last started well, again."""
    REPAIR = "repair"
    """Fetch the files that are missing or wrong again."""
    INSTALL = "install"
    """Install another engine on the host."""
    START = "start"
    """The same spec again."""


@dataclass(frozen=True)
class Remedy:
    """One thing that can be done. `key` names it in addresses, with the value it was offered with."""

    kind: Kind
    key: str
    value: str = ""
    """The argument's new value, the engine's primary key, or the spec's number."""
    sets: Mapping[str, str] = field(default_factory=dict)
    """Flags and their new values."""
    drops: tuple[str, ...] = ()
    """Flags to leave out."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """Environment variables and their new values."""


@dataclass(frozen=True)
class Situation:
    """What is known about what failed."""

    code: str
    text: str = ""
    """Message and evidence of the failure, with line breaks between."""
    arguments: Sequence[str] = ()
    has_fixed_port: bool = False
    engine_version: str = ""
    engines: Sequence[tuple[int, str]] = ()
    """Other usable engines of the host: primary key and version."""
    has_source: bool = False
    """True if the model's files can be fetched again."""
    good_spec: int | None = None
    """Number of the spec of the last good start, if another spec is in place now."""


def value_of(arguments: Sequence[str], flag: str) -> str | None:
    """The value that a flag has in arguments, the last one counting; empty for a bare flag, None where it isn't."""
    found = None
    for chunk in chunks(arguments):
        name, _sign, given = chunk[0].partition("=")
        if _plain(name) == flag:
            found = given or " ".join(chunk[1:])
    return found


def with_arguments(arguments: Sequence[str], *, sets: Mapping[str, str], drops: Sequence[str] = ()) -> list[str]:
    """Arguments with other values for some flags (empty: a bare flag), and without others; the rest stays word by word."""
    gone = {*sets, *drops}
    kept = [word for chunk in chunks(arguments) if _plain(chunk[0].partition("=")[0]) not in gone for word in chunk]
    return [*kept, *(word for flag, value in sets.items() for word in (flag, value) if word)]


def remedies(known: Situation) -> list[Remedy]:
    """What can be done, the likeliest first. Going back to the spec that last started well helps whatever the cause."""
    found = [*_BY_CODE.get(known.code, _nothing)(known)]
    if known.code.startswith(("weights.", "tokenizer.", "config.", "chat_template.", "files.")) and known.has_source:
        found.append(Remedy(Kind.REPAIR, "repair"))
    if known.good_spec is not None:
        found.append(Remedy(Kind.ROLL_BACK, f"roll-back-{known.good_spec}", str(known.good_spec)))
    return found


def _plain(flag: str) -> str:
    return flag.replace("_", "-") if flag.startswith("--") else flag


def _nothing(_known: Situation) -> list[Remedy]:
    return []


def _number(pattern: str, text: str) -> int | None:
    match = re.search(pattern, text)
    return int(match[1].replace(",", "")) if match else None


def _argument(flag: str, value: str) -> Remedy:
    return Remedy(Kind.ARGUMENTS, f"{flag.strip('-')}-{value.replace('.', '-')}", value, sets={flag: value})


def _left_out(flag: str) -> Remedy:
    return Remedy(Kind.ARGUMENTS, f"no-{flag.strip('-').replace('_', '-')}", drops=(_plain(flag),))


def _shorter_context(known: Situation) -> list[Remedy]:
    """The engine says how long a context its KV cache holds; a round number below it leaves room for one request more."""
    most = _number(r"estimated maximum model length is ([\d,]+)", known.text)
    if most is None or most < 256:
        return []
    step = 1024 if most >= 4096 else 128
    return [_argument("--max-model-len", str(most // step * step))]


def _model_context(known: Situation) -> list[Remedy]:
    most = _number(r"(?:max_position_embeddings|model_max_length|derived max_model_len \()\D{0,24}?(\d+)", known.text)
    return [_argument("--max-model-len", str(most))] if most else []


def _batched_tokens(known: Situation) -> list[Remedy]:
    context = _number(r"max_model_len \((\d+)\)", known.text)
    return [_argument("--max-num-batched-tokens", str(context))] if context else []


def _lower_utilization(known: Situation) -> list[Remedy]:
    """A hundredth below what is free, so that a few megabytes more of a neighbour's don't fail the next start."""
    match = re.search(r"\(([\d.]+)/([\d.]+) GiB\) on startup is less than desired", known.text)
    if not match or float(match[2]) <= 0:
        return []
    share = math.floor(float(match[1]) / float(match[2]) * 100 - 1) / 100
    return [_argument("--gpu-memory-utilization", f"{share:g}")] if share >= 0.1 else []


def _smaller_kv(known: Situation) -> list[Remedy]:
    if value_of(known.arguments, "--kv-cache-memory-bytes") is not None:
        return [_left_out("--kv-cache-memory-bytes")]
    match = re.search(r"\(([\d.]+)/[\d.]+ GiB\) on kv cache allocation is less than requested", known.text)
    room = int(float(match[1]) / 2) if match else 0
    if room < 1:
        return []
    name = "VLLM_CPU_KVCACHE_SPACE"
    return [Remedy(Kind.ARGUMENTS, f"kv-space-{room}", str(room), variables={name: str(room)})]


def _out_of_memory(known: Situation) -> list[Remedy]:
    now = value_of(known.arguments, "--gpu-memory-utilization")
    try:
        share = float(now) if now else 0.9
    except ValueError:
        return []
    lower = round(share - 0.05, 2)
    return [_argument("--gpu-memory-utilization", f"{lower:g}")] if 0.3 <= lower < 1 else []


def _unknown_argument(known: Situation) -> list[Remedy]:
    match = re.search(r"unrecognized arguments: (.+)", known.text)
    flags = [word.partition("=")[0] for word in match[1].split() if word.startswith("--")] if match else []
    given = [flag for flag in dict.fromkeys(flags) if value_of(known.arguments, _plain(flag)) is not None]
    return [_left_out(flag) for flag in given[:1]]


def _wrong_value(known: Situation) -> list[Remedy]:
    match = re.search(r"error: argument (--[\w-]+)", known.text)
    return [_left_out(match[1])] if match and value_of(known.arguments, _plain(match[1])) is not None else []


def _without(flag: str) -> Callable[[Situation], list[Remedy]]:
    def leave_out(known: Situation) -> list[Remedy]:
        return [_left_out(flag)] if value_of(known.arguments, flag) is not None else []

    return leave_out


def _one_device(known: Situation) -> list[Remedy]:
    now = value_of(known.arguments, "--tensor-parallel-size")
    heads = _number(r"attention heads \((\d+)\)", known.text)
    if not now or not now.isdigit() or int(now) < 2:
        return []
    smaller = next((size for size in range(int(now) - 1, 0, -1) if not heads or heads % size == 0), 1)
    return [_argument("--tensor-parallel-size", str(smaller))]


def _half(_known: Situation) -> list[Remedy]:
    return [_argument("--dtype", "half")]


def _own_code(known: Situation) -> list[Remedy]:
    """Only an admin is offered it; whether the code may run is asked again before the start."""
    flag = "--trust-remote-code"
    if value_of(known.arguments, flag) is not None:
        return []
    return [*_newer_engine_that_is_here(known), Remedy(Kind.ARGUMENTS, "trust-remote-code", sets={flag: ""})]


def _newer_engine_that_is_here(known: Situation) -> list[Remedy]:
    return [one for one in _newer_engine(known) if one.kind == Kind.ENGINE]


def _lora_rank(known: Situation) -> list[Remedy]:
    rank = _number(r"LoRA rank (\d+) is greater", known.text)
    allowed = next((size for size in (8, 16, 32, 64, 128, 256, 320, 512) if rank and size >= rank), None)
    return [_argument("--max-lora-rank", str(allowed))] if allowed else []


def _other_port(known: Situation) -> list[Remedy]:
    return [Remedy(Kind.PORT, "port")] if known.has_fixed_port else [Remedy(Kind.START, "start")]


def _newer_engine(known: Situation) -> list[Remedy]:
    newer = [one for one in known.engines if version_numbers(one[1]) > version_numbers(known.engine_version)]
    newest = max(newer, key=lambda one: version_numbers(one[1]), default=None)
    install = Remedy(Kind.INSTALL, "install")
    return [Remedy(Kind.ENGINE, f"engine-{newest[0]}", str(newest[0]))] if newest else [install]


def _older_engine(known: Situation) -> list[Remedy]:
    older = [one for one in known.engines if version_numbers(one[1]) < version_numbers(known.engine_version)]
    newest = max(older, key=lambda one: version_numbers(one[1]), default=None)
    return [Remedy(Kind.ENGINE, f"engine-{newest[0]}", str(newest[0]))] if newest else []


def _again(_known: Situation) -> list[Remedy]:
    return [Remedy(Kind.START, "start")]


def version_numbers(text: str) -> tuple[int, ...]:
    """Numbers of an engine's version, to tell which of two is newer."""
    return tuple(int(part) for part in re.findall(r"\d+", text.partition("+")[0])[:4])


_BY_CODE: Mapping[str, Callable[[Situation], list[Remedy]]] = {
    "kv_cache.too_small": _shorter_context,
    "kv_cache.no_blocks": _nothing,
    "context.exceeds_model": _model_context,
    "scheduler.batched_tokens_below_context": _batched_tokens,
    "memory.free_below_utilization": _lower_utilization,
    "memory.kv_request_exceeds_available": _smaller_kv,
    "memory.out_of_memory": _out_of_memory,
    "args.unrecognized": _unknown_argument,
    "args.invalid_choice": _wrong_value,
    "args.invalid_value": _wrong_value,
    "attention.block_size_unsupported": _without("--block-size"),
    "quantization.unknown": _without("--quantization"),
    "quantization.config_missing": _without("--quantization"),
    "parallelism.heads_not_divisible": _one_device,
    "parallelism.not_enough_devices": _one_device,
    "dtype.bfloat16_unsupported": _half,
    "lora.rank": _lora_rank,
    "port.in_use": _other_port,
    "arch.unsupported": _newer_engine,
    "code.remote_required": _own_code,
    "arch.transformers_too_old": _newer_engine,
    "driver.no_kernel_image": _newer_engine,
    "driver.too_old": _older_engine,
    "engine.gone": _newer_engine,
    "engine.died": _again,
    "engine.hung": _again,
    "engine.exited": _again,
    "process.killed_by_oom": _again,
    "nccl.hang": _again,
}
