"""What an order may not say about an engine, because Slipway decides it: options of `vllm serve`, and variables.

The host refuses these whatever anybody says (`workers.host.launching`), and the deploy form says so before anything starts.
"""

from collections.abc import Mapping, Sequence

OWN_OPTIONS: Mapping[str, str] = {
    "--host": "the agent decides where an engine listens",
    "--port": "the port is a field of its own",
    "--uds": "the agent decides where an engine listens",
    "--api-key": "the key is sealed and set by the agent",
    "--served-model-name": "the served names are a field of their own",
    "--model": "the model is a field of its own",
    "--config": "a file on the host could change anything",
}
"""Option to the reason why it can't be given."""

ALLOWED_PREFIXES = (
    "VLLM_",
    "HF_",
    "OMP_",
    "NCCL_",
    "TORCH_",
    "PYTORCH_",
    "CUDA_",
    "FLASHINFER_",
    "GLOO_",
    "TOKENIZERS_",
)
ALLOWED_NAMES = ("HF_HOME", "TRITON_CACHE_DIR", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")
FORBIDDEN_NAMES: Mapping[str, str] = {
    "VLLM_PLUGINS": "it loads code into the engine",
    "VLLM_API_KEY": "the deployment's key is sealed and set by the agent",
    "VLLM_HOST_IP": "the agent decides where an engine listens",
    "VLLM_PORT": "the agent decides where an engine listens",
    "VLLM_TORCH_PROFILER_DIR": "it writes files anywhere",
    "VLLM_LOGGING_CONFIG_PATH": "it loads code into the engine",
    "VLLM_SERVER_DEV_MODE": "it opens control endpoints to every client",
    "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "it lets every client load files",
    "VLLM_ALLOW_INSECURE_SERIALIZATION": "it lets messages run code",
    "CUDA_INJECTION64_PATH": "it loads code into the engine",
    "NCCL_NET_PLUGIN": "it loads code into the engine",
    "NCCL_TUNER_PLUGIN": "it loads code into the engine",
    "NCCL_PROFILER_PLUGIN": "it loads code into the engine",
    "TORCH_EXTENSIONS_DIR": "it loads code into the engine",
}


def own_option(word: str) -> str | None:
    """The option of ours that a word of argv is, or that the engine would take it for; None if it is another's.

    The engine takes unique prefixes, so `--api-k` is `--api-key`, and underscores for dashes.
    """
    name = word.split("=", 1)[0].replace("_", "-")
    if not name.startswith("--") or len(name) < 4:
        return None
    return next((one for one in OWN_OPTIONS if one.startswith(name)), None)


def own_options(words: Sequence[str]) -> list[tuple[str, str]]:
    """All options of ours among words of argv, as (the word's own spelling, the option it means)."""
    found = [(word.split("=", 1)[0].replace("_", "-"), own_option(word)) for word in words]
    return [(name, option) for name, option in found if option is not None]


def forbidden_variable(name: str) -> str:
    """Why a variable can't be set for an engine; empty if it can."""
    if name in FORBIDDEN_NAMES:
        return FORBIDDEN_NAMES[name]
    allowed = name.startswith(ALLOWED_PREFIXES) or name in ALLOWED_NAMES
    return "" if allowed else "it is not a setting of the engine"
