"""What a host is and how it is now, as its agent sees it: devices, processes on them, system, limits, environment.

Travels inside `HostInventory.facts` (what changes rarely) and `Heartbeat.vitals` (what changes every five seconds), and is
what the environment card is judged from. Every field may be unknown: None, or empty. Memory in bytes, shares 0 to 1.
"""

from typing import Any, Literal, TypeVar

from pydantic import Field, ValidationError

from workers.contracts import Message


class GpuProcess(Message):
    """A process that holds memory of a GPU. `instance`: ours, by id; empty: a stranger."""

    pid: int
    name: str = ""
    """Command line, shortened, secrets masked."""
    memory: int | None = None
    """None: the driver doesn't tell (WSL2, another user's process, some MIG instances)."""
    instance: str = ""


class Mig(Message):
    """Which part of which GPU a MIG instance is."""

    parent: str
    gpu_instance: int
    compute_instance: int
    profile: str = ""


def gpu_number(index: int, mig: Mig | None) -> str:
    """What tells a GPU, or a part of one, from all others of its host."""
    return str(index) if mig is None else f"{index}.{mig.gpu_instance}.{mig.compute_instance}"


class Gpu(Message):
    """One GPU, or one MIG instance of a GPU."""

    index: int
    uuid: str
    name: str
    bus_id: str = ""
    capability: str = ""
    """CUDA compute capability such as `9.0`."""
    memory_total: int = 0
    memory_used: int | None = None
    memory_free: int | None = None
    memory_reserved: int | None = None
    pcie_generation: int | None = None
    pcie_generation_max: int | None = None
    pcie_width: int | None = None
    pcie_width_max: int | None = None
    nvlink_links: int | None = None
    """Active links."""
    nvlink_peers: list[str] = []
    """Bus ids of GPUs or switches at the other ends, each once."""
    mig_enabled: bool | None = None
    mig: Mig | None = None
    ecc_enabled: bool | None = None
    ecc_corrected: int | None = None
    ecc_uncorrected: int | None = None
    """Errors since the board was made, or since the driver was loaded where only those are counted."""
    rows_pending: bool | None = None
    """True: memory rows or pages wait for a reset to be taken out of use."""
    clock_sm_mhz: int | None = None
    clock_sm_max_mhz: int | None = None
    clock_memory_mhz: int | None = None
    slowdowns: list[str] = []
    """Why its clocks are held down now, other than being idle."""
    power_watts: float | None = None
    power_limit_watts: float | None = None
    temperature_c: int | None = None
    utilization: float | None = None
    compute_mode: str = ""
    """Empty or `Default`; `Exclusive_Process` and `Prohibited` keep engines out."""
    processes: list[GpuProcess] = []

    @property
    def number(self) -> str:
        """`0`, or `0.3.0` for the parts of a GPU that MIG has divided: unlike `index`, each has its own on the host."""
        return gpu_number(self.index, self.mig)

    @property
    def usable(self) -> bool:
        """False for a GPU that is divided: only its MIG instances can be used."""
        return not (self.mig_enabled and self.mig is None)


class GpuReading(Message):
    """What could be read of the GPUs, how, and what could not."""

    source: Literal["nvml", "nvidia-smi", "none", "pending"] = "none"
    problem: str = ""
    """Why nothing was read, in words; empty when there is nothing wrong."""
    code: str = ""
    """`no_driver`, `mismatch`, `not_loaded`, `hangs`, `lost`, `no_permission`, `failed`, or empty."""
    driver: str = ""
    cuda: str = ""
    """The newest CUDA that the driver runs."""
    gpus: list[Gpu] = []
    unreadable: list[str] = []
    """One line for each GPU that is there and can't be read."""


class NumaNode(Message):
    """One NUMA node with its CPUs as the kernel writes them (`0-15,32-47`)."""

    index: int
    cpus: str
    memory_total: int = 0
    memory_free: int = 0


class Cpu(Message):
    """The processor, as a device that engines run on."""

    name: str = ""
    sockets: int | None = None
    cores: int | None = None
    threads: int | None = None
    usable: float | None = None
    """Logical CPUs that this process may use: affinity and cgroup quota counted."""
    features: list[str] = []
    """Instruction sets that matter for inference, by the kernel's names."""
    nodes: list[NumaNode] = []


class Memory(Message):
    """RAM as the agent may use it. `limit`: what the container or slice allows, None without one."""

    total: int = 0
    available: int = 0
    limit: int | None = None
    limit_used: int | None = None
    swap_total: int = 0


class Disk(Message):
    """One file system and what of Slipway lies on it."""

    mount: str
    filesystem: str = ""
    total: int = 0
    free: int = 0
    holds: dict[str, str] = {}
    """`models`, `engines`, `state`, `temporary`, `home` -> path."""


class Limits(Message):
    """What the kernel allows the agent, and engines with it. -1: unlimited."""

    open_files: int | None = None
    open_files_hard: int | None = None
    locked_memory: int | None = None
    processes: int | None = None
    shm_total: int | None = None
    shm_free: int | None = None


class System(Message):
    """Kernel, distribution and C library."""

    kernel: str = ""
    machine: str = ""
    distribution: str = ""
    distribution_id: str = ""
    wsl: bool = False
    container: str = ""
    glibc: str = ""
    python: str = ""
    user: str = ""


class Surroundings(Message):
    """Variables and tools around the agent that engines inherit or need."""

    variables: dict[str, str] = {}
    """Those that can lead a Python or a linker astray, as far as they are set."""
    conda: str = ""
    """Prefix of the conda environment that the agent runs in, or empty."""
    user_site: list[str] = []
    """Packages in the user's site directory that an engine's Python would see."""
    compiler: str = ""
    """The C compiler's first line of `--version`, or empty."""
    compat_driver: str = ""
    """Version of a libcuda from a cuda-compat package (forward compatibility), or empty."""


class Accelerator(Message):
    """Something other than an NVIDIA GPU that computes, and how it was found."""

    kind: Literal["ascend", "rocm", "dcu", "mlu", "gaudi", "xpu", "musa"]
    count: int = 0
    evidence: str = ""


class Hub(Message):
    """Whether the model hub answers from this host."""

    endpoint: str = ""
    reachable: bool | None = None
    problem: str = ""
    milliseconds: float | None = None


class Xid(Message):
    """One error of the NVIDIA driver in the kernel's log. `at`: seconds since the epoch, on the host's clock."""

    at: float
    bus_id: str
    code: int
    text: str


class XidLog(Message):
    """Xid errors since boot, newest last; `problem`: why the log can't be read."""

    source: str = ""
    problem: str = ""
    events: list[Xid] = []


class EngineEnvironment(Message):
    """What lies in one engine's environment, read from its files without running it."""

    key: str
    version: str = ""
    platform: str = ""
    python: str = ""
    torch: str = ""
    torch_cuda: str = ""
    """CUDA that its torch was built for; empty for a CPU, ROCm or unknown build."""
    torch_build: str = ""
    """`cuda`, `cpu`, `rocm`, `xpu`, or empty when there is no torch to be seen."""
    triton: bool = False
    wheel_tag: str = ""
    """Platform tag of the vllm wheel, such as `manylinux_2_31_x86_64`."""
    system_packages: bool = False
    """True if its virtual environment also sees the packages of the Python it was made from."""


class Stranger(Message):
    """A vLLM server that Slipway did not start."""

    pid: int
    user: str = ""
    argv: list[str] = []
    """Secrets are masked on the host."""
    command: str = ""
    """The same as one line that a shell would take."""
    started_at: float = 0
    port: int | None = None
    model: str = ""
    python: str = ""
    container: bool = False
    """True if it runs in another PID or mount namespace."""
    devices: list[str] = []
    """UUIDs of the GPUs that it holds memory of."""
    memory: int | None = None
    """Device memory, or RAM for one on the CPU."""


class HostFacts(Message):
    """Everything about a host that changes rarely."""

    system: System = System()
    cpu: Cpu = Cpu()
    memory: Memory = Memory()
    disks: list[Disk] = []
    limits: Limits = Limits()
    surroundings: Surroundings = Surroundings()
    accelerators: list[Accelerator] = []
    hub: Hub = Hub()
    xid: XidLog = XidLog()
    gpus: GpuReading = Field(default_factory=GpuReading)
    """As of the inventory: sources, versions and reasons; the heartbeat has the newer numbers."""
    engines: list[EngineEnvironment] = []


class Live(Message):
    """What changes from one heartbeat to the next."""

    gpus: GpuReading = Field(default_factory=GpuReading)
    strangers: list[Stranger] = []
    processes: list[GpuProcess] = []
    """Memory of our own instances in RAM, for the CPU as a device."""
    memory: Memory | None = None
    shm_free: int | None = None
    age_seconds: float = 0
    """How old this is when it is sent; more than a few periods: something on the host hangs."""


def facts_of(stored: Any) -> HostFacts | None:
    """The facts in `HostInventory.facts` of an agent that tells them; None for an older agent or what isn't understood."""
    return _read(HostFacts, stored, "host")


def live_of(vitals: Any) -> Live | None:
    """The live part of `Heartbeat.vitals`; None for an older agent or what isn't understood."""
    return _read(Live, vitals, "live")


_Kind = TypeVar("_Kind", bound=Message)


def _read(kind: type[_Kind], stored: Any, name: str) -> _Kind | None:
    raw = stored.get(name) if isinstance(stored, dict) else None
    if raw is None:
        return None
    try:
        return kind.model_validate(raw)
    except ValidationError:
        return None
