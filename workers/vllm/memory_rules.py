"""The rules of vLLM's memory planning that changed from version to version.

Every boundary below was read in the source of the releases on both sides of it (0.16 to 0.32), or measured with a launch.
A version newer than the newest known one is planned with the newest rules; the plan then says so.
"""

import re
from dataclasses import dataclass

NEWEST_KNOWN_VERSION = "0.32.0"

Version = tuple[int, int, int]


@dataclass(frozen=True)
class MemoryRules:
    """How one engine version turns layers and bytes into blocks and tokens.

    Attributes:
        version: the engine version these rules are for, as (major, minor, patch).
        newer_than_known: True when the version is newer than every one whose rules were read.
        tokens_from_concurrency: the logged token count is int(concurrency x context); before, it was
            (blocks // groups) x smallest block, which undersold every model with sliding windows.
        counts_concurrent_batches: a sliding window reserves room for every batch in flight, not just for one.
        hybrid_prefix_caching: prefix caching is on by default for models with recurrent layers, which then hold two
            states per request instead of one.
        group_balance_factor: layer kinds whose counts differ by less than this factor are padded to the larger count.
        pads_state_pages: a recurrent layer's page may be padded to the largest page.
        pads_attention_pages: an attention layer's page that doesn't divide the largest one is padded to it.
        reserves_null_block: the start-up check itself demands the one block that never serves a request.
        v2_runner_everywhere: the second model runner (one more batch in flight under pipeline parallelism) is the
            default for every model; before, only for dense models.
        cpu_mla: the CPU backend can run multi-head latent attention (in blocks of 16).
        cpu_aligns_state_pages: the CPU backend grows its block until a recurrent state fits in a page.
        cpu_fp8_cache: the CPU backend can keep keys and values in FP8.
        cpu_kernel_tokens: blocks of the CPU's attention kernels are multiples of so many tokens.
        cpu_float32_states: a CPU with AVX-512 BF16 keeps recurrent states in float32.
        default_utilization: what `--gpu-memory-utilization` is when left out.
        counts_cuda_graphs: CUDA graphs are measured before the KV cache is sized, so they come out of it.
    """

    version: Version
    newer_than_known: bool
    tokens_from_concurrency: bool
    counts_concurrent_batches: bool
    hybrid_prefix_caching: bool
    group_balance_factor: float
    pads_state_pages: bool
    pads_attention_pages: bool
    reserves_null_block: bool
    v2_runner_everywhere: bool
    cpu_mla: bool
    cpu_aligns_state_pages: bool
    cpu_fp8_cache: bool
    cpu_kernel_tokens: int
    cpu_float32_states: bool
    default_utilization: float
    counts_cuda_graphs: bool


def parse_version(text: str) -> Version:
    """(major, minor, patch) of "0.32", "v0.20.2" or "0.32.0+cpu". ValueError for anything else."""
    match = re.fullmatch(r"v?(\d+)\.(\d+)(?:\.(\d+))?(?:[.+-]?[a-z].*|\+.*)?", text.strip(), flags=re.IGNORECASE)
    if match is None:
        message = f"{text!r} is not an engine version; write it like {NEWEST_KNOWN_VERSION}"
        raise ValueError(message)
    return int(match[1]), int(match[2]), int(match[3] or 0)


def rules_for(engine_version: str) -> MemoryRules:
    """The rules of that engine version. ValueError when the version can't be read."""
    version = parse_version(engine_version)
    return MemoryRules(
        version=version,
        newer_than_known=version > parse_version(NEWEST_KNOWN_VERSION),
        tokens_from_concurrency=version >= (0, 20, 1),
        counts_concurrent_batches=version >= (0, 26, 0),
        hybrid_prefix_caching=version >= (0, 26, 0),
        group_balance_factor=1.5 if version >= (0, 18, 0) else 1.25,
        pads_state_pages=version >= (0, 24, 0),
        pads_attention_pages=version >= (0, 26, 0),
        reserves_null_block=version >= (0, 29, 0),
        v2_runner_everywhere=version >= (0, 29, 0),
        cpu_mla=version >= (0, 28, 0),
        cpu_aligns_state_pages=version >= (0, 21, 0),
        cpu_fp8_cache=version >= (0, 21, 0),
        cpu_kernel_tokens=32 if version >= (0, 29, 0) else 1,
        cpu_float32_states=version >= (0, 26, 0),
        default_utilization=0.92 if version >= (0, 20, 0) else 0.9,
        counts_cuda_graphs=version >= (0, 21, 0),
    )
