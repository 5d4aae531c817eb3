"""`slipway plan PATH`: will this model fit, and how many tokens can it hold?"""

import argparse
import json
import os
import sys
from pathlib import Path

from workers.vllm.argument_values import human_int
from workers.vllm.memory import (
    NEWEST_KNOWN_VERSION,
    Device,
    Plan,
    PlanRequest,
    builtin_catalogue,
    device_of_bytes,
    find_device,
    parse_bytes,
    plan,
    read_model,
)

_USAGE_ERROR = 2


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("path", type=Path, metavar="PATH", help="model directory, or a config.json")
    parser.add_argument("--device", metavar="NAME|BYTES", help="a device of the catalogue (H100, L40S, ...), or bytes")
    parser.add_argument("--count", type=int, metavar="N", help="devices there are")
    parser.add_argument("--tensor-parallel-size", "-tp", type=int, metavar="N")
    parser.add_argument("--pipeline-parallel-size", "-pp", type=int, metavar="N")
    parser.add_argument("--gpu-memory-utilization", type=float, metavar="FRACTION")
    parser.add_argument("--kv-cache-memory", type=_bytes, metavar="BYTES", help="KV cache per device")
    parser.add_argument("--kv-cache-dtype", default="auto", metavar="DTYPE")
    parser.add_argument("--max-model-len", type=_tokens, metavar="TOKENS", help="longest request")
    parser.add_argument("--max-num-seqs", type=int, metavar="N")
    parser.add_argument("--max-num-batched-tokens", type=_tokens, metavar="TOKENS")
    parser.add_argument("--block-size", type=int, metavar="TOKENS")
    parser.add_argument("--platform", choices=("cuda", "cpu"))
    parser.add_argument("--engine-version", default=NEWEST_KNOWN_VERSION, metavar="VERSION")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")


def _bytes(text: str) -> int:
    try:
        return parse_bytes(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _tokens(text: str) -> int:
    try:
        return human_int(text)
    except ValueError:
        message = f"{text!r} is not a number of tokens; write 32768, or as vLLM takes it: 32k (32,000), 32K (32,768)"
        raise argparse.ArgumentTypeError(message) from None


def run(options: argparse.Namespace) -> int:
    """Print the plan. 0 when one was made, whatever its verdict; 1 when the model can't be read; 2 for bad options."""
    try:
        request = _request(options)
    except ValueError as error:
        return _refuse(str(error), code=_USAGE_ERROR, as_json=options.json)
    try:
        model = read_model(options.path)
    except (OSError, ValueError) as error:
        return _refuse(str(error), code=1, as_json=options.json)
    try:
        result = plan(model, request)
    except ValueError as error:
        return _refuse(str(error), code=_USAGE_ERROR, as_json=options.json)
    print(json.dumps(result.as_json(), indent=2) if options.json else _for_people(result))
    return 0


def _request(options: argparse.Namespace) -> PlanRequest:
    return PlanRequest(
        device=_device(options.device, options.platform),
        count=options.count,
        tensor_parallel=options.tensor_parallel_size,
        pipeline_parallel=options.pipeline_parallel_size,
        gpu_memory_utilization=options.gpu_memory_utilization,
        kv_cache_memory=options.kv_cache_memory,
        kv_cache_dtype=options.kv_cache_dtype,
        max_model_len=options.max_model_len,
        max_num_seqs=options.max_num_seqs,
        max_num_batched_tokens=options.max_num_batched_tokens,
        block_size=options.block_size,
        platform=options.platform,
        engine_version=options.engine_version,
    )


def _device(name: str | None, platform: str | None) -> Device | None:
    if name is None:
        return None
    known = find_device(name)
    if known is not None and known.memory_bytes is not None:
        return known
    if known is not None:
        # The catalogue can't know how much memory a CPU has; this machine's is the best guess there is.
        return device_of_bytes(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), "cpu")
    try:
        memory = parse_bytes(name)
    except ValueError:
        names = ", ".join(device.key for device in builtin_catalogue())
        message = f"no device {name!r}; give bytes (85899345920, 80GiB) or one of {names}"
        raise ValueError(message) from None
    return device_of_bytes(memory, "cpu" if platform == "cpu" else "cuda")


def _refuse(message: str, *, code: int, as_json: bool) -> int:
    if as_json:
        print(json.dumps({"error": message, "fits": None, "reasons": [message], "suggestions": []}))
    else:
        print(f"slipway plan: {message}", file=sys.stderr)
    return code


def _for_people(result: Plan) -> str:
    verdict = {True: "fits", False: "does not fit", None: "no verdict"}[result.fits]
    rows = [
        ("verdict", verdict),
        ("weights", f"{_gib(result.weights_bytes)} ({result.weights_source}), "
                    f"{_gib(result.weights_bytes_per_device)} per device"),
        ("overhead", f"{_gib(result.overhead.nbytes)} per device ({result.overhead.source})"),
        ("KV cache", f"{result.kv_bytes_per_token:,} bytes per token, blocks of {result.block_size} tokens and "
                     f"{result.bytes_per_block:,} bytes"),
        ("one request", f"{result.max_model_len:,} tokens need {_gib(result.min_kv_bytes_for_one_request)}"),
    ]  # fmt: skip
    if result.num_blocks is not None and result.kv_cache_tokens is not None and result.max_concurrency is not None:
        rows.append(("pool", f"{_gib(result.kv_cache_bytes or 0)}, {result.num_blocks:,} blocks, "
                             f"{result.kv_cache_tokens:,} tokens, {result.max_concurrency:.2f} full requests"))  # fmt: skip
    lines = [f"{name:<12} {text}" for name, text in rows]
    lines += [f"  {reason.severity}: {reason.text}" for reason in result.reasons]
    lines += [f"  try: {suggestion.text}" for suggestion in result.suggestions]
    return "\n".join(lines)


def _gib(nbytes: int) -> str:
    return f"{nbytes / 2**30:,.2f} GiB" if nbytes >= 2**30 else f"{nbytes / 2**20:,.1f} MiB"
