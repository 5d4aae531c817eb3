"""Warnings that a healthy engine writes while it loads, and what they mean for whoever reads them.

Most are harmless, some cost speed, a few announce wrong answers. `explain_warnings` takes the lines of a load log and
returns each kind of warning once, with the meaning where it is known. The wordings come from real logs.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class LoadWarning:
    """One kind of warning: its first line (numbered from 1), its text, and its meaning; empty if it is not known."""

    line: int
    text: str
    meaning: str
    count: int = 1


_KNOWN: tuple[tuple[str, str], ...] = (
    (
        r"Enforce eager set",
        "Compilation and CUDA graphs are off: it starts sooner and generates more slowly. Remove --enforce-eager for "
        "production on a GPU.",
    ),
    (r"Inductor compilation was disabled", "Follows from --enforce-eager; nothing more is lost."),
    (
        r"Found ulimit of \d+ and failed to automatically increase",
        "The limit of open files is low: with many connections at once, requests fail. Raise `ulimit -n` for the agent.",
    ),
    (
        r"Triton is not installed|requires Triton|Triton not installed",
        "Without Triton, slower kernels are used. Expected on a CPU; on a GPU the engine's installation is incomplete.",
    ),
    (
        r"(?:libtcmalloc|libiomp)\S* is not found in LD_PRELOAD",
        "Generation on the CPU is slower than it could be; answers are not affected.",
    ),
    (r"Reset SSM cache type", "A choice of the engine for models with recurrent layers; harmless."),
    (
        r"does not officially support disabling chunked prefill",
        "The engine itself says that answers may be wrong so. Remove --no-enable-chunked-prefill.",
    ),
    (r"system-first ordering", "Concerns /v1/messages only: system messages in the middle are merged into the first."),
    (
        r"Casting torch\.\w+ to torch\.\w+|downcasting|Casting .* to float16",
        "Weights are served in another precision than they were trained in; float16 overflows in some models.",
    ),
    (
        r"generation_config|Default sampling parameters have been overridden",
        "The model's own generation_config.json changes default sampling for clients that set none.",
    ),
    (
        r"fp8.*(?:not supported|doesn't support)|weight-only|Marlin kernel",
        "This device has no native FP8: weights are unpacked for each use, so memory is saved and speed is not.",
    ),
    (
        r"Using KV cache scaling factor 1\.0|q_scale|k_scale|v_scale|uncalibrated",
        "The KV cache is quantised without calibrated scales: answers can get worse. Compare golden answers.",
    ),
    (r"prefers block_size", "The KV cache's block size costs some speed on this CPU; answers are not affected."),
    (r"Not enough SMs", "The GPU is too small for an autotuning mode; slightly slower kernels are used."),
    (
        r"[Cc]ustom allreduce is disabled|custom_all_reduce",
        "GPUs talk through NCCL instead of a faster path: expected without NVLink or peer access.",
    ),
    (
        r"Using default (?:MoE|W8A8) .*config|performance might be sub-optimal|Performance might be",
        "There is no tuned kernel configuration for this model on this device; answers are right, speed is less.",
    ),
    (
        r"tokenizer.*(?:slow|not fast)|slow tokenizer",
        "A tokenizer without a fast form: long prompts cost the API server much time.",
    ),
    (
        r"vocab.*(?:mismatch|differ)|added_tokens|resiz\w* .*embedding",
        "Vocabulary and embedding differ in size; usually padding, but compare with the published tokenizer.",
    ),
    (
        r"trust_remote_code|trust-remote-code",
        "Code from the model's repository runs on this host. Read it before the model gets traffic.",
    ),
    (
        r"max_num_batched_tokens .* (?:smaller|less)|chunked prefill",
        "Long prompts are read in parts; the first token of a long prompt comes later, others wait less.",
    ),
    (
        r"not initialized from the model checkpoint|newly initialized",
        "Some weights are missing in the files: answers are wrong.",
    ),
    (r"[Dd]eprecat", "An option or interface goes away in a later version; nothing is wrong today."),
    (r"force killing", "A process of this engine did not end by itself and was killed."),
)
_RULES = tuple((re.compile(pattern), meaning) for pattern, meaning in _KNOWN)
_LINE = re.compile(r"^(?:\(\S+ pid=\d+\) )?WARNING (?:\d\d-\d\d \d\d:\d\d:\d\d )?(?:\[[^\]]*\] )?(?P<text>.+?)\s*$")
_NUMBERS = re.compile(r"\d+")
_LONGEST_TEXT = 300
_MOST_KINDS = 40


def explain_warnings(lines: Iterable[str]) -> tuple[LoadWarning, ...]:
    """Every kind of warning in `lines` once, in the order of the log; two lines that differ in numbers are one kind."""
    found: dict[str, LoadWarning] = {}
    for number, line in enumerate(lines, 1):
        match = _LINE.match(line)
        if match is None:
            continue
        text = match["text"][:_LONGEST_TEXT]
        meaning = next((meaning for rule, meaning in _RULES if rule.search(text)), "")
        kind = meaning or _NUMBERS.sub("#", text)
        if kind in found:
            known = found[kind]
            found[kind] = LoadWarning(known.line, known.text, meaning, known.count + 1)
        elif len(found) < _MOST_KINDS:
            found[kind] = LoadWarning(number, text, meaning)
    return tuple(found.values())
