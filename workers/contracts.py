"""The messages that cross Redis between the console and its hosts, versioned.

Down, from the console: `DesiredState` (a key under the host's prefix, highest generation wins) and `StepOrder` (the
payload of one Celery task). Up, from the agent, in three lanes: `Report`s (numbered, never dropped), `LogChunk`s (the
attempt's file on the host is the outbox), `Heartbeat`s with `MetricsBatch`es (droppable). All of them are JSON, validated
on receipt.

`CONTRACT` grows with every change that an older side could misread; the console speaks `CONTRACT` and `CONTRACT - 1`.
"""

from enum import StrEnum
from typing import Annotated, Any, Literal, TypeAlias
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field

CONTRACT = 1

HOST_NAME_PATTERN = r"^[a-z0-9](?:[a-z0-9-]{0,30}[a-z0-9])?$"
"""A host's name is part of Redis ACL patterns and file names: lower-case letters, digits and inner hyphens only."""


def key_prefix(host: str) -> str:
    """Prefix of every Redis key and channel that belongs to `host`; its Redis user can touch nothing else."""
    return f"h:{host}:"


def desired_key(host: str) -> str:
    """Key that holds the host's `DesiredState` as JSON."""
    return f"{key_prefix(host)}desired"


def doorbell_channel(host: str) -> str:
    """Channel on which the console says that the desired state or an acknowledgement changed (no content)."""
    return f"{key_prefix(host)}doorbell"


def reports_stream(host: str) -> str:
    """Stream of `Report`s, field `json`."""
    return f"{key_prefix(host)}reports"


def logs_stream(host: str) -> str:
    """Stream of `LogChunk`s, field `json`."""
    return f"{key_prefix(host)}logs"


def samples_stream(host: str) -> str:
    """Stream of `Heartbeat`s and `MetricsBatch`es, field `json`; capped, may lose entries."""
    return f"{key_prefix(host)}samples"


def acknowledged_key(host: str) -> str:
    """Hash outbox id -> highest report number that the console has stored."""
    return f"{key_prefix(host)}acknowledged"


def log_cursor_key(host: str) -> str:
    """Hash attempt id -> byte offset up to which the console has stored that attempt's log."""
    return f"{key_prefix(host)}log-cursors"


def agent_seat_key(host: str) -> str:
    """Key that the one agent of a host holds while it is heard of."""
    return f"{key_prefix(host)}agent"


def refused_agent_key(host: str) -> str:
    """Key that says which second agent was refused lately."""
    return f"{key_prefix(host)}agent-refused"


def host_queue(host: str) -> str:
    """Celery queue of one host (before the key prefix that the transport adds)."""
    return f"host.{host}"


MOST_FILES = 50
"""How many files a `StepProgress` names; the others are only counted."""

RUN_STEP = "workers.host.run_step"
"""Name of the one Celery task that a host's worker has; its only argument is a `StepOrder` as a JSON object."""


class Message(BaseModel):
    """Base of all messages: immutable; unknown fields are ignored, so that a newer sender is understood."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class StepKind(StrEnum):
    """What a step does; each has a module of that name in `workers.host.steps`."""

    PREFLIGHT = "preflight"
    DOWNLOAD = "download"
    VERIFY = "verify"
    LAUNCH = "launch"
    LISTENING = "listening"
    VALIDATE = "validate"
    WARMUP = "warmup"
    QUALITY = "quality"
    BENCHMARK = "benchmark"
    STOP = "stop"
    INSTALL_ENGINE = "install_engine"
    ADOPT_ENGINE = "adopt_engine"
    CHECK_ENGINE = "check_engine"
    REMOVE_ENGINE = "remove_engine"
    CLEAR_CACHE = "clear_cache"
    MAKE_DEMO_MODEL = "make_demo_model"
    CONTROL_RUN = "control_run"
    DELETE_COPY = "delete_copy"
    SERVE_COPY = "serve_copy"
    UPGRADE_AGENT = "upgrade_agent"
    INSTALL_QUANTIZER = "install_quantizer"
    REMOVE_QUANTIZER = "remove_quantizer"
    QUANTIZE = "quantize"


class Generation(Message):
    """Version of a host's desired state. A later epoch wins over any number; a restored database starts a new epoch."""

    epoch: int
    number: int

    def newer_than(self, other: "Generation | None") -> bool:
        """True if this generation supersedes `other` (`None`: nothing was known before)."""
        return other is None or (self.epoch, self.number) > (other.epoch, other.number)


class RestartPolicy(Message):
    """How often the shim may restart an engine that had been ready: `budget` restarts within `window_seconds`.

    An engine counts as hung, and is ended as a failure, when it has work and makes no progress for `hang_seconds`.
    """

    budget: int = Field(default=3, ge=0, le=100)
    window_seconds: float = Field(default=600, gt=0)
    backoff_seconds: float = Field(default=1, ge=0)
    backoff_max_seconds: float = Field(default=60, ge=0)
    hang_seconds: float = Field(default=120, ge=0)
    """0: it is only shown, never ended because of it."""
    probe_seconds: float = Field(default=60, ge=0)
    """An idle engine is asked for one token this often; 0: never. One that works shows by its counters that it lives."""
    probe_under_load: bool = False


class GoldenAnswer(Message):
    """What a sound engine answered to `question` at temperature 0; later engines are compared with it."""

    question: str
    answer: str
    engine: str
    """Key of the engine that answered."""


class Probe(Message):
    """What validation asks a freshly started model, and what warm-up sends."""

    mode: Literal["chat", "completions", "embeddings"] = "chat"
    """`completions`: a base model without a chat template, declared as one. `embeddings`: a model that pools; an engine
    without any interface for text is asked so whatever this says."""
    prompt: str = "What is the capital of France? Answer in one sentence."
    expected: str = ""
    """Text that the answer must contain (case-insensitive); empty: only sanity is checked."""
    language: str = ""
    """BCP 47 tag of the language that the answer must be in; empty: any."""
    repeats: int = Field(default=3, ge=1, le=10)
    """How often the question is asked at temperature 0."""
    patience_seconds: float = Field(default=0, ge=0, le=240)
    """What prompts of rising length may take, and what asking again at temperature 0 may: beyond that less is asked for, and
    the report says so. 0: half a minute for prompts where the engine reads them fast, and about a second otherwise."""
    declares: list[Literal["tools", "json"]] = []
    """Interfaces beyond chat, completions and streaming that clients rely on; tools are also read from the arguments."""
    golden: list[GoldenAnswer] = []
    warmup_prompt: str = "Hi"
    """The limit is 128 tokens, but the answer ends by itself: a small model on a CPU is ready seconds earlier."""
    warmup_prompts: list[str] = []
    """The deployment's own prompts, sent in turn after `warmup_prompt` until the time to the first token is stable."""
    ttft_target_seconds: float = Field(default=0, ge=0)
    """Time to the first token that warm-up tries to reach; 0: stable is enough."""
    warmup_seconds: float = Field(default=60, gt=0)
    """Warm-up ends after this time and says what it reached."""


class ManifestFile(Message):
    """One file as a verification left it: size, mtime and inode tell later whether it was touched since."""

    path: str
    size: int
    mtime_ns: int
    inode: int
    sha256: str | None = None


class AdapterOrder(Message):
    """A LoRA adapter that an instance's engine shall answer for, under a name of its own.

    `files` are those of its copy's last sound verification; a file that was touched since keeps it from being loaded.
    """

    name: str
    path: str
    files: list[ManifestFile]
    load: int = 1
    """Rises by one each time a person asks for it to be loaded anew."""


class InstanceOrder(Message):
    """One instance as it should be: part of `DesiredState`.

    The host looks the engine up in its own register by `engine`; the console never names an executable. `arguments` is
    what follows `vllm serve MODEL`, without host, port, served name and key, which the agent adds.
    """

    instance: UUID
    deployment: str
    spec: int
    engine: str
    model_path: str
    served_model_names: list[str]
    arguments: list[str]
    environment: dict[str, str] = {}
    sealed_environment: dict[str, str] = {}
    """Secrets sealed to this host's public key, base64; opened only when the engine is started."""
    port: int
    run: bool
    start: int = 1
    """Rises by one when a person asks for a restart; the agent stops the running process and starts anew."""
    bring_up: Literal["job", "agent"] = "job"
    """Who takes a fresh process through listening, validation and warm-up: a job's steps, or the agent by itself."""
    grace_seconds: float = 20
    start_deadline_seconds: float = 1800
    restart: RestartPolicy = RestartPolicy()
    probe: Probe = Probe()
    adapters: list[AdapterOrder] = []
    """Loaded into the running engine once it is ready, by its own endpoints; a change of them restarts nothing."""


class StepCancellation(Message):
    """A step that must not go on; kept in the desired state until its end has been reported."""

    step: int
    fence: int


class CopyOffer(Message):
    """A copy that this host gives to another one while the offer stands in its desired state.

    `number` is the job's. Whoever brings the token may read the files that the step `serve_copy` has found unchanged,
    under `/{repository}/resolve/{commit}/{path}`; nothing is offered before that step.
    """

    number: int
    model_path: str
    repository: str
    commit: str
    sealed_token: str
    """Sealed to this host's public key, base64; the receiving host has it sealed to its own."""


class CredentialsOrder(Message):
    """New credentials for the host; it stands in the desired state until the host was heard of with them."""

    number: int
    """Rises with each rotation."""
    sealed_password: str
    """The broker's new password, sealed to the host's public key."""
    new_key: bool = False
    """True: the host makes a new key pair, too, and tells its public half with its heartbeats."""


class DesiredState(Message):
    """Everything that one host should be running or give away, and the steps that it should abandon."""

    contract: int = CONTRACT
    generation: Generation
    instances: list[InstanceOrder] = []
    cancelled_steps: list[StepCancellation] = []
    copy_offers: list[CopyOffer] = []
    hold: str = ""
    """Why the host must not end an engine that lives (a hung one, for instance) by itself; empty: it may."""
    credentials: CredentialsOrder | None = None


class StepOrder(Message):
    """One step for one host. `fence` rises with each dispatch; an agent refuses a number older than it has seen."""

    contract: int = CONTRACT
    step: int
    job: int
    fence: int
    kind: StepKind
    deadline_seconds: float
    payload: dict[str, Any] = {}
    sealed: dict[str, str] = {}


class Failure(Message):
    """Why something failed: what and how much in `message`, the next thing to do in `next`."""

    code: str
    message: str
    next: str = ""
    evidence: list[dict[str, Any]] = []


class Level(StrEnum):
    """Severity of an event."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class StepStarted(Message):
    """The host began (or resumed) a step. It renews the lease."""

    kind: Literal["step.started"] = "step.started"
    step: int
    fence: int


class StepStillRunning(Message):
    """Answer to a repeated dispatch of a step that is running here: it goes on under the newer fence."""

    kind: Literal["step.still_running"] = "step.still_running"
    step: int
    fence: int


class FileProgress(Message):
    """How far one file of a step is, in bytes. `remaining_seconds` None: nothing comes now, or nobody knows yet."""

    path: str
    done: int
    total: int
    state: Literal["active", "waiting", "done"]
    rate: float | None = None
    remaining_seconds: float | None = None
    waiting_for: str = ""


class StepProgress(Message):
    """How far a step is. `total` None: unknown. It renews the lease; sent about once a second at most."""

    kind: Literal["step.progress"] = "step.progress"
    step: int
    fence: int
    done: float
    total: float | None = None
    unit: Literal["bytes", "seconds", "items", "tokens"] = "items"
    rate: float | None = None
    """Units per second."""
    waiting_for: str = ""
    remaining_seconds: float | None = None
    """By the rate of the last half minute, not of the last second; None: unknown, or nothing comes now."""
    files: list[FileProgress] = []
    """The files that matter now: active ones first, then waiting, then done; at most `MOST_FILES`."""
    files_total: int = 0
    files_done: int = 0
    numbers: dict[str, float] = {}
    """What a step measures while it runs, by name with its unit (`ttft_p50_ms`); most steps measure nothing."""


class StepEvent(Message):
    """One line of a step's own log."""

    kind: Literal["step.event"] = "step.event"
    step: int
    fence: int
    level: Level = Level.INFO
    text: str


class StepPart(Message):
    """A part of a step's result that is whole by itself and worth keeping, however the step ends.

    `name` is unique within the step: the same part sent again (after a restart of the agent) replaces itself.
    """

    kind: Literal["step.part"] = "step.part"
    step: int
    fence: int
    name: str
    content: dict[str, Any] = {}
    raw: str = ""
    """What it was made from, gzipped, base64; empty where there is nothing more, or it was too large to send."""


class StepFinished(Message):
    """The outcome of a step. `result` feeds the step's result card; `failure` is set when it failed."""

    kind: Literal["step.finished"] = "step.finished"
    step: int
    fence: int
    outcome: Literal["succeeded", "failed", "cancelled"]
    result: dict[str, Any] = {}
    failure: Failure | None = None


class InstancePhase(StrEnum):
    """What the agent sees of an instance; the console maps it onto its own states."""

    STARTING = "starting"
    LOADING = "loading"
    LISTENING = "listening"
    VALIDATING = "validating"
    WARMING = "warming"
    READY = "ready"
    UNHEALTHY = "unhealthy"
    RESTARTING = "restarting"
    STOPPING = "stopping"
    STOPPED = "stopped"
    CRASHED = "crashed"


class InstanceObserved(Message):
    """The phase of an instance changed, seen at `generation`."""

    kind: Literal["instance.observed"] = "instance.observed"
    instance: UUID
    generation: Generation | None
    phase: InstancePhase
    reason: str = ""
    attempt: int | None = None
    restarts: int = 0
    failure: Failure | None = None


class Check(Message):
    """One row of a validation: what was found, what is needed, how long it took, and what to do if it is not so."""

    name: str
    outcome: Literal["ok", "warning", "failed", "skipped"]
    fact: str
    need: str = ""
    seconds: float = 0
    points_at: list[str] = []
    """Suspects, the likeliest first: weights, template, tokenizer, quantisation, engine."""
    next: str = ""


class InstanceChecked(Message):
    """A process was validated, by a job's step or by the agent itself. `sound` false: it must get no traffic."""

    kind: Literal["instance.checked"] = "instance.checked"
    instance: UUID
    attempt: int
    engine: str
    sound: bool
    checks: list[Check]
    golden: list[GoldenAnswer] = []
    """The answers of this run, worth keeping if it is sound."""
    warnings: list[dict[str, Any]] = []
    """Warnings of the engine's log so far, `{line, text, meaning}`."""


class AdapterSeen(Message):
    """What became of one adapter of an instance; `load` is the number of its order."""

    name: str
    load: int
    state: Literal["loading", "loaded", "failed"]
    failure: Failure | None = None


class AdaptersObserved(Message):
    """All adapters that an engine process has or shall have. Sent when one of them changed; the newest counts."""

    kind: Literal["instance.adapters"] = "instance.adapters"
    instance: UUID
    attempt: int
    adapters: list[AdapterSeen]


class LaunchFacts(Message):
    """What a start turned out to need, as its engine said it; None where this version doesn't. Bytes are per rank."""

    weights_bytes: int | None = None
    load_seconds: float | None = None
    kv_cache_bytes: int | None = None
    kv_cache_tokens: int | None = None
    max_model_len: int | None = None
    max_concurrency: float | None = None
    graph_bytes: int | None = None
    init_seconds: float | None = None
    num_blocks: int | None = None
    block_size: int | None = None
    resident_bytes: int | None = None
    """Memory of all its processes in RAM, shared pages counted once."""
    seconds: float | None = None
    """From the spawn to the end of the warm-up."""


class AttemptMeasured(Message):
    """A start has warmed up: what it needed, to be laid beside what was planned."""

    kind: Literal["attempt.measured"] = "attempt.measured"
    instance: UUID
    number: int
    facts: LaunchFacts


class AttemptStarted(Message):
    """An engine process was spawned. `environment` names what was set; secret values are replaced by `***`."""

    kind: Literal["attempt.started"] = "attempt.started"
    instance: UUID
    number: int
    pid: int
    argv: list[str]
    environment: dict[str, str]
    started_at: float
    """Seconds since the epoch on the host's clock: shown, never compared with the console's."""


class AttemptEnded(Message):
    """An engine process ended; `asked` says whether someone wanted it to."""

    kind: Literal["attempt.ended"] = "attempt.ended"
    instance: UUID
    number: int
    exit_code: int | None
    asked: bool
    ended_at: float
    log_bytes: int
    diagnosis: dict[str, Any] = {}


class DeviceFacts(Message):
    """One device of a host: a GPU, or the CPU as a device of its own kind. Memory in bytes."""

    kind: Literal["cpu", "gpu"]
    index: int
    uuid: str
    name: str
    memory_total: int
    memory_free: int
    details: dict[str, Any] = {}


class EngineFacts(Message):
    """One engine as the host's register has it. `key` names it in orders."""

    key: str
    distribution: str
    version: str
    platform: str
    path: str
    size_bytes: int = 0
    details: dict[str, Any] = {}


class HostInventory(Message):
    """What a host has. Sent at start, on change, and every ten minutes. `facts["host"]` is `workers.host_facts.HostFacts`."""

    kind: Literal["host.inventory"] = "host.inventory"
    agent_version: str
    contract: int
    devices: list[DeviceFacts]
    devices_known: bool = True
    """False: the host has not looked at its GPUs yet, so nothing follows from a device that is missing here."""
    engines: list[EngineFacts]
    facts: dict[str, Any] = {}


class EngineSchema(Message):
    """The arguments of one engine, as its own parser has them. Sent when they are new; 200 kB, so not with each inventory."""

    kind: Literal["engine.schema"] = "engine.schema"
    key: str
    sha256: str
    content: dict[str, Any]
    """What `workers.vllm.dump_arguments` prints."""


class UnknownInstances(Message):
    """Instances that run here but stand in no desired state: kept, shown, never killed."""

    kind: Literal["host.unknown_instances"] = "host.unknown_instances"
    instances: list[UUID]


Body: TypeAlias = Annotated[
    StepStarted
    | StepStillRunning
    | StepProgress
    | StepEvent
    | StepPart
    | StepFinished
    | InstanceObserved
    | AttemptStarted
    | AttemptEnded
    | InstanceChecked
    | AdaptersObserved
    | AttemptMeasured
    | HostInventory
    | EngineSchema
    | UnknownInstances,
    Field(discriminator="kind"),
]


class Report(Message):
    """One numbered report. The console drops doubles by (host, outbox, number) and takes them strictly in order.

    `outbox` is the id of the agent's outbox file: it outlives the agent's process, and a lost disk starts a new one.
    """

    contract: int = CONTRACT
    outbox: UUID
    number: int
    at: float
    body: Body


class LogChunk(Message):
    """Bytes from `offset` on of an attempt's log, base64. `gap` bytes before `offset` were dropped by the cap."""

    contract: int = CONTRACT
    instance: UUID
    attempt: int
    offset: int
    data: str
    gap: int = 0
    final: bool = False


class HistogramSample(Message):
    """A Prometheus histogram: `counts[i]` observations were at most `bounds[i]`, `count` in all, `total` is their sum."""

    bounds: list[float]
    """Finite upper bounds, rising; the endless last bucket is `count`."""
    counts: list[float]
    count: float
    total: float


class InstanceSample(Message):
    """What an engine's `/metrics` said at one moment, under the names of `workers.vllm.metrics.MetricsSample`.

    A name that is missing means that this engine version has no such metric. Counters, histograms and counts by reason run
    from the start of the engine's process, so a sample that is lost loses no count.
    """

    instance: UUID
    attempt: int
    taken_at: float
    """Seconds on the host's steady clock: only differences between samples of one host mean something."""
    started_at: float | None = None
    now: dict[str, float] = {}
    counters: dict[str, float] = {}
    finished: dict[str, float] = {}
    admission_rejections: dict[str, float] = {}
    histograms: dict[str, HistogramSample] = {}
    own_since: float | None = None
    """Since this `taken_at` only Slipway's own requests were counted: validation, warm-up, a probe. 0: since the start."""


class MetricsBatch(Message):
    """The engines of one host at one moment. Sent every second; may be dropped, which leaves a gap."""

    kind: Literal["metrics"] = "metrics"
    contract: int = CONTRACT
    samples: list[InstanceSample]
    without: list[UUID] = []
    """Instances whose engine listens and did not answer `/metrics` in time."""


class Heartbeat(Message):
    """Sign of life, every five seconds. `generation` is the desired state that the host has converged to."""

    kind: Literal["heartbeat"] = "heartbeat"
    contract: int = CONTRACT
    agent_version: str
    agent_pid: int
    agent_boot: UUID
    """New with each start of the agent: two at once for one host are told apart by it."""
    at: float
    generation: Generation | None
    credentials: int = 0
    """Number of the rotation whose credentials the host uses."""
    public_key: str = ""
    """Public half of the host's newest key pair."""
    running_steps: list[int] = []
    vitals: dict[str, Any] = {}
    """Numbers of the moment; `vitals["live"]` is `workers.host_facts.Live`."""
