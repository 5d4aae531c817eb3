"""From an order to the exact command line and environment of an engine. Nothing here is ever given to a shell."""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workers.contracts import InstanceOrder
from workers.host.compile_caches import cache_environment
from workers.host.engines import Engine
from workers.host.failures import StepFailedError
from workers.host.instance_files import InstanceFiles
from workers.host.processes import OWNER_VARIABLE
from workers.sealing import SealingError, unseal_any
from workers.vllm.lora import RUNTIME_VARIABLE, settings_of
from workers.vllm.own_options import ALLOWED_PREFIXES, OWN_OPTIONS, forbidden_variable, own_options

LISTEN_ADDRESS = "127.0.0.1"

API_KEY = "VLLM_API_KEY"

_ENDING_SECONDS = 2
"""What an engine needs to end after its last request: it is killed when the grace time is over."""

_INHERITED = (
    "PATH", "HOME", "USER", "LOGNAME", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR", "LD_LIBRARY_PATH", "CUDA_HOME",
    "CUDA_PATH", "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "NVIDIA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES",
    "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "HF_HOME", "XDG_CACHE_HOME", "SSL_CERT_FILE", "SSL_CERT_DIR",
)  # fmt: skip
"""What an engine inherits from the agent; everything else (the agent's own secrets among it) stays here."""

_DEFAULTS = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
_CPU_DEFAULTS = {"VLLM_CPU_KVCACHE_SPACE": "1"}
_THREADS = "VLLM_CPU_OMP_THREADS_BIND"
_KV_SIZE = "--kv-cache-memory"
"""Begins every way to write the argument whose place the variable would take: the engine believes the variable."""


@dataclass(frozen=True)
class Launch:
    """What a shim is given: `spec` lies on disk without secrets, `environment` only ever in memory."""

    spec: dict[str, Any]
    environment: dict[str, str]


def prepare_launch(
    order: InstanceOrder,
    engine: Engine,
    private_keys: tuple[str, ...],
    inherited: Mapping[str, str],
    *,
    state_dir: Path,
) -> Launch:
    """Build command line and environment of `order`. Raises `StepFailedError` for what must not be started."""
    check_arguments(order.arguments)
    check_environment(order.environment)
    if not Path(order.model_path).exists():
        raise StepFailedError(
            "path.not_found",
            f"there is no model directory {order.model_path} on this host",
            next_step="Choose a model that lies on this host, or copy it there first.",
        )
    secrets = open_secrets(order, private_keys)
    environment = _environment(order, engine, inherited, state_dir)
    shown = {name: value for name, value in environment.items() if inherited.get(name) != value}
    spec = {
        "instance": str(order.instance),
        "start": order.start,
        "argv": command_line(order, engine),
        "environment": shown | dict.fromkeys(secrets, "***"),
        "grace_seconds": order.grace_seconds,
        "restart": order.restart.model_dump(),
    }
    return Launch(spec=spec, environment=environment | secrets)


def command_line(order: InstanceOrder, engine: Engine) -> list[str]:
    """The engine's argv. Our own options come last: where an option is given twice, the last one counts."""
    return [
        *engine.command,
        "serve",
        order.model_path,
        *_quiet(engine, order.arguments),
        *_drain(engine, order),
        *_with_usage(engine, order.arguments),
        *order.arguments,
        "--host",
        LISTEN_ADDRESS,
        "--port",
        str(order.port),
        "--served-model-name",
        *order.served_model_names,
    ]


def _quiet(engine: Engine, arguments: list[str]) -> list[str]:
    """Keep our own health checks, one a second, out of the engine's access log; people's requests stay in it."""
    option = "--disable-access-log-for-endpoints"
    # Which adapters it has is asked for, too; people's clients are told what there is by the gateway.
    endpoints = "/health,/metrics" + (",/v1/models" if settings_of(arguments).enabled else "")
    return [] if _given(option, arguments) or _version(engine) < (0, 16) else [option, endpoints]


def _drain(engine: Engine, order: InstanceOrder) -> list[str]:
    """Let requests in flight end when it is stopped, where the engine can; a moment before the grace time is over."""
    option = "--shutdown-timeout"
    seconds = int(order.grace_seconds) - _ENDING_SECONDS
    can = _version(engine) >= (0, 20) and seconds > 0
    return [option, str(seconds)] if can and not _given(option, order.arguments) else []


def _given(option: str, arguments: list[str]) -> bool:
    return any(argument.startswith(option) for argument in arguments)


def _version(engine: Engine) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", engine.version)[:2])


def _with_usage(engine: Engine, arguments: list[str]) -> list[str]:
    """Let streams tell their tokens, whatever the client asks: the gateway counts by it."""
    option = "--enable-force-include-usage"
    given = _given(option, arguments) or _given(option.replace("--", "--no-", 1), arguments)
    return [] if given or _version(engine) < (0, 10) else [option]


def check_arguments(arguments: list[str]) -> None:
    """Raise `StepFailedError` (`arguments.reserved`) for an option that the agent itself sets."""
    for name, own in own_options(arguments):
        raise StepFailedError(
            "arguments.reserved",
            f"{name} can't be given here: {OWN_OPTIONS[own]}",
            next_step=f"Remove {name} and try again.",
        )


def check_environment(environment: Mapping[str, str]) -> None:
    """Raise `StepFailedError` (`environment.not_allowed`) for a variable that an order may not set."""
    for name in environment:
        reason = forbidden_variable(name)
        if reason:
            allowed = ", ".join(f"{prefix}*" for prefix in ALLOWED_PREFIXES)
            raise StepFailedError(
                "environment.not_allowed",
                f"the variable {name} can't be set for an engine: {reason}",
                next_step=f"Remove it. Allowed are {allowed} with few exceptions.",
            )


def open_secrets(order: InstanceOrder, private_keys: tuple[str, ...]) -> dict[str, str]:
    """Decrypt the order's sealed variables. Raises `StepFailedError` (`secret.unreadable`)."""
    try:
        return {name: unseal_any(private_keys, sealed) for name, sealed in order.sealed_environment.items()}
    except SealingError as error:
        raise StepFailedError(
            "secret.unreadable",
            f"a secret of this deployment can't be opened on this host: {error}",
            next_step="Save the secret again; if that fails, join the host anew.",
        ) from error


def _threads(order: InstanceOrder, engine: Engine, state_dir: Path) -> dict[str, str]:
    """Leave an engine's threads to the system where another engine runs already.

    By itself vLLM binds the threads of each engine on a CPU to the same first cores. Beside one that is busy, the second
    then gets next to nothing of them, its start included, while other cores idle.
    """
    if engine.platform != "cpu":
        return {}
    others = (files.state() for files in InstanceFiles.all_in(state_dir) if files.instance != order.instance)
    return {_THREADS: "nobind"} if any(state is not None and state.engine_alive for state in others) else {}


def _environment(order: InstanceOrder, engine: Engine, inherited: Mapping[str, str], state_dir: Path) -> dict[str, str]:
    environment = {name: inherited[name] for name in _INHERITED if name in inherited}
    # The engine's own tools (ninja, for one) lie beside its Python.
    environment["PATH"] = os.pathsep.join([str(Path(engine.python).parent), environment.get("PATH", os.defpath)])
    says_size = any(argument.replace("_", "-").startswith(_KV_SIZE) for argument in order.arguments)
    environment |= _DEFAULTS | (_CPU_DEFAULTS if engine.platform == "cpu" and not says_size else {})
    environment |= _threads(order, engine, state_dir)
    environment |= cache_environment(state_dir, engine.key, order.model_path)
    environment |= engine.environment | order.environment
    if settings_of(order.arguments).enabled:
        environment[RUNTIME_VARIABLE] = "1"
    environment["PYTHONUNBUFFERED"] = "1"
    environment[OWNER_VARIABLE] = str(order.instance)
    return environment
