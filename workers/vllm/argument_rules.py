"""What arguments say about one another, about the model and about the machine.

Source: the validations of vLLM's serve command and configuration classes (0.32, most of them far older), each of which
ends a start with an error.
"""

from workers.vllm.argument_findings import Findings, Surroundings
from workers.vllm.argument_model import ModelLimits, model_limits
from workers.vllm.argument_schema import ArgumentSchema
from workers.vllm.argument_values import Value

EXCLUSIVE = (
    ("enable_per_request_metrics", "disable_log_stats", "the metrics of a request come from the statistics"),
    ("grpc", "grpc_port", "they start two different gRPC servers"),
    ("data_parallel_external_lb", "data_parallel_hybrid_lb", "requests are balanced in one way only"),
    ("data_parallel_multi_port_external_lb", "data_parallel_external_lb", "requests are balanced in one way only"),
    ("data_parallel_multi_port_external_lb", "data_parallel_hybrid_lb", "requests are balanced in one way only"),
)
NEEDED = (
    ("enable_auto_tool_choice", "tool_call_parser"),
    ("enable_log_outputs", "enable_log_requests"),
    ("enable_eplb", "enable_expert_parallel"),
)
SET_TWICE = (
    ("attention_backend", "attention_config", "backend"),
    ("cudagraph_capture_sizes", "compilation_config", "cudagraph_capture_sizes"),
    ("max_cudagraph_capture_size", "compilation_config", "max_cudagraph_capture_size"),
    ("spec_method", "speculative_config", "method"),
    ("spec_model", "speculative_config", "model"),
    ("spec_tokens", "speculative_config", "num_speculative_tokens"),
)
AT_MOST = (
    ("max_num_seqs", "max_num_batched_tokens"),
    ("max_num_active_seqs", "max_num_seqs"),
)


def check_rules(
    schema: ArgumentSchema, values: dict[str, Value], findings: Findings, surroundings: Surroundings
) -> None:
    """Add what the values contradict, and correct them where only one correction makes sense."""
    _check_pairs(schema, values, findings)
    _check_numbers(schema, values, findings)
    limits = None
    if surroundings.model_config is not None:
        overrides = values.get("hf_overrides")
        limits = model_limits(surroundings.model_config, overrides if isinstance(overrides, dict) else None)
        environment = surroundings.environment or {}
        _check_context(values, findings, limits, stretched=environment.get("VLLM_ALLOW_LONG_MAX_MODEL_LEN") == "1")
        _check_heads(values, findings, limits)
    _check_batched_tokens(values, findings, limits)
    port = values.get("port")
    if surroundings.port_taken is not None and isinstance(port, int) and surroundings.port_taken(port):
        message = f"Port {port} is in use on this machine."
        fix = "Leave --port out: Slipway takes a free one from the host's range."
        findings.add("port.in_use", "--port", message, fix)


def _check_pairs(schema: ArgumentSchema, values: dict[str, Value], findings: Findings) -> None:
    flags = {dest: argument.flag for dest, argument in schema.by_dest.items()}
    for first, second, reason in EXCLUSIVE:
        if values.get(first) not in (None, False) and values.get(second) not in (None, False):
            message = f"{flags[first]} and {flags[second]} exclude each other: {reason}."
            findings.add("args.conflict", flags[second], message, f"Leave {flags[second]} out.")
            del values[second]
    for wish, need in NEEDED:
        if values.get(wish) and need in flags and not values.get(need):
            message = f"{flags[wish]} needs {flags[need]}."
            findings.add("args.conflict", flags[wish], message, f"Add {flags[need]}, or leave {flags[wish]} out.")
            if schema.by_dest[need].boolean:
                values[need] = True
            else:
                del values[wish]
    for single, whole, key in SET_TWICE:
        inside = values.get(whole)
        if values.get(single) is not None and isinstance(inside, dict) and inside.get(key) is not None:
            message = f"{flags[single]} and {flags[whole]}.{key} set the same thing; vLLM refuses both together."
            findings.add("args.conflict", flags[single], message, "Keep one of them.")
            del values[single]


def _check_numbers(schema: ArgumentSchema, values: dict[str, Value], findings: Findings) -> None:
    for smaller, larger in AT_MOST:
        low, high = values.get(smaller), values.get(larger)
        if isinstance(low, int) and isinstance(high, int) and low > high:
            name, bound = schema.by_dest[smaller].flag, schema.by_dest[larger].flag
            message = f"{name} {low:,} is more than {bound} {high:,}; vLLM refuses that."
            findings.add("args.conflict", name, message, f"Lower {name} to {high} or raise {bound}.")
            values[smaller] = high
    if values.get("headless") and (values.get("api_server_count") or 0) > 0:
        message = "--headless starts no API server, so --api-server-count can't ask for some."
        findings.add("args.conflict", "--api-server-count", message, "Leave one of them out.")
        del values["api_server_count"]
    if values.get("kv_cache_memory_bytes") and "gpu_memory_utilization" in values:
        message = "--kv-cache-memory-bytes fixes the cache, so --gpu-memory-utilization has no effect."
        findings.add("args.conflict", "--gpu-memory-utilization", message, "Leave one of them out.", severity="info")


def _check_context(values: dict[str, Value], findings: Findings, limits: ModelLimits, *, stretched: bool) -> None:
    asked = values.get("max_model_len")
    if limits.context is None or not isinstance(asked, int) or asked <= limits.context:
        return
    message = f"--max-model-len {asked:,} is more than the model's {limits.context:,} ({limits.context_key})."
    if stretched:
        message += " VLLM_ALLOW_LONG_MAX_MODEL_LEN=1 lets it start; answers beyond the limit may be garbage."
        findings.add("context.exceeds_model", "--max-model-len", message, "Know what you do.", severity="warning")
        return
    fix = f"Use at most {limits.context}, or give the model a RoPE scaling that it was made for with --hf-overrides."
    findings.add("context.exceeds_model", "--max-model-len", message, fix)
    values["max_model_len"] = limits.context


def _check_heads(values: dict[str, Value], findings: Findings, limits: ModelLimits) -> None:
    size = values.get("tensor_parallel_size", 1)
    if limits.heads is None or not isinstance(size, int) or size < 2:
        return
    if _divides(size, limits):
        return
    fitting = [candidate for candidate in range(1, limits.heads + 1) if _divides(candidate, limits)]
    shown = ", ".join(str(candidate) for candidate in fitting if candidate <= 64)
    whose = f"{limits.heads} attention heads"
    if limits.heads % size == 0:
        whose = f"{limits.kv_heads} KV heads"
    message = f"The model's {whose} can't be divided among {size} GPUs."
    findings.add("parallelism.heads_not_divisible", "--tensor-parallel-size", message, f"Use one of {shown}.")
    values["tensor_parallel_size"] = max(candidate for candidate in fitting if candidate <= size)


def _divides(size: int, limits: ModelLimits) -> bool:
    """Attention heads must divide evenly; KV heads too, or each of them is copied to the same number of GPUs."""
    if (limits.heads or 0) % size:
        return False
    kv_heads = limits.kv_heads
    return limits.latent or not kv_heads or kv_heads % size == 0 or size % kv_heads == 0


def _check_batched_tokens(values: dict[str, Value], findings: Findings, limits: ModelLimits | None) -> None:
    """Without chunked prefill a prompt has to fit into one step, so the step must be as long as the context."""
    batched = values.get("max_num_batched_tokens")
    context = values.get("max_model_len") or (limits.context if limits else None)
    if values.get("enable_chunked_prefill") is not False or not isinstance(batched, int):
        return
    if not isinstance(context, int) or batched >= context:
        return
    findings.add(
        "scheduler.batched_tokens_below_context",
        "--max-num-batched-tokens",
        f"Without chunked prefill a whole prompt must fit into one step, but --max-num-batched-tokens {batched:,} is less "
        f"than the context of {context:,}.",
        f"Raise it to {context}, lower --max-model-len, or leave chunked prefill on.",
    )
    values["max_num_batched_tokens"] = context
