"""What a starting engine's log says about memory and time, to be laid beside what was planned.

Source: the log lines of vLLM 0.8 to 0.32 on GPUs and CPUs; numbers in GiB are rounded to two places there.
"""

import re

from workers.contracts import LaunchFacts

GIB = 2**30

_WEIGHTS = re.compile(r"Model loading took ([\d.]+) ?(?:GiB|GB)(?: memory)? and ([\d.]+) seconds")
_LOADED = re.compile(r"Loading weights took ([\d.]+) seconds")
_KV_GPU = re.compile(r"Available KV cache memory: (-?[\d.]+) GiB")
_KV_CPU = re.compile(r"(?:Explicitly|Auto) set \(([\d.]+)/[\d.]+\) GiB for KV cache")
_TOKENS = re.compile(r"KV cache size: ([\d,]+) tokens")
_CONCURRENCY = re.compile(r"Maximum concurrency for ([\d,]+) tokens per request: ([\d.]+)x")
_GRAPHS = re.compile(r"Graph capturing finished in (\d+) secs?, took (-?[\d.]+) GiB")
_INIT = re.compile(r"init engine \(profile, create kv cache, warmup model\) took ([\d.]+) s")


def read_launch_log(text: str) -> LaunchFacts:
    """Read the log of one attempt. Where ranks differ, the one with the least room for the KV cache counts, as it does
    for the engine.
    """
    weights = list(_WEIGHTS.finditer(text))
    loads = [float(match[1]) for match in _LOADED.finditer(text)] or [float(match[2]) for match in weights]
    kv = [float(match[1]) for pattern in (_KV_GPU, _KV_CPU) for match in pattern.finditer(text)]
    tokens = [_whole(match[1]) for match in _TOKENS.finditer(text)]
    concurrency = [(_whole(match[1]), float(match[2])) for match in _CONCURRENCY.finditer(text)]
    graphs = [float(match[2]) for match in _GRAPHS.finditer(text)]
    init = [float(match[1]) for match in _INIT.finditer(text)]
    return LaunchFacts(
        weights_bytes=round(max(float(match[1]) for match in weights) * GIB) if weights else None,
        load_seconds=max(loads, default=None),
        kv_cache_bytes=round(min(kv) * GIB) if kv else None,
        kv_cache_tokens=min(tokens, default=None),
        max_model_len=concurrency[-1][0] if concurrency else None,
        max_concurrency=min((times for _context, times in concurrency), default=None),
        graph_bytes=round(max(graphs) * GIB) if graphs else None,
        init_seconds=max(init, default=None),
    )


def _whole(text: str) -> int:
    return int(text.replace(",", ""))
