"""Payload and result of the step `benchmark`, and the part that it reports for each run.

A benchmark is a list of loads (or a sweep that finds them); each load is run `repeats` times, and each run is one
`vllm bench serve` of the engine's own environment. Times are milliseconds where a name says `_ms`, seconds otherwise;
rates are per second.
"""

from typing import Literal
from uuid import UUID

from pydantic import Field, model_validator

from workers.contracts import Message

MOST_PROMPTS = 2_000
"""Prompts of an upload that travel with a step; a longer file is sampled by the console."""
MOST_REQUESTS = 20_000
"""Requests of one run."""

LoadKind = Literal["rate", "concurrency"]
"""`rate`: requests per second, sent whatever comes back. `concurrency`: so many at once, the next when one has ended."""


class Prompt(Message):
    """One prompt of an upload. `output_tokens` None: as many as the workload says."""

    prompt: str = Field(min_length=1, max_length=400_000)
    output_tokens: int | None = Field(default=None, ge=1, le=100_000)


class Turn(Message):
    """A question and its answer, as ShareGPT files have them; the engine's client takes the answer's length."""

    question: str
    answer: str


class Workload(Message):
    """What is asked. Lengths are tokens by the model's own tokenizer."""

    kind: Literal["random", "shared_prefix", "prompts", "conversations"] = "random"
    input_tokens: int = Field(default=256, ge=1, le=1_000_000)
    output_tokens: int = Field(default=128, ge=1, le=100_000)
    spread: float = Field(default=0, ge=0, lt=1)
    """Lengths lie evenly between (1 - spread) and (1 + spread) times the ones above."""
    output_spread: float | None = Field(default=None, ge=0, lt=1)
    """The same for answers alone; None: as `spread`. Only for `random`."""
    prefix_tokens: int = Field(default=0, ge=0, le=1_000_000)
    """`shared_prefix`: length of what prompts have in common; `input_tokens` is what follows it."""
    prefixes: int = Field(default=1, ge=1, le=10_000)
    """How many such beginnings there are."""
    interface: Literal["completions", "chat"] = "completions"
    prompts: list[Prompt] = Field(default=[], max_length=MOST_PROMPTS)
    conversations: list[Turn] = Field(default=[], max_length=MOST_PROMPTS)
    temperature: float = Field(default=0, ge=0, le=2)


class Targets(Message):
    """What makes a request a good one; None: this time doesn't matter. All three empty: nothing is judged."""

    ttft_ms: float | None = Field(default=None, gt=0)
    itl_ms: float | None = Field(default=None, gt=0)
    """Mean time between the tokens of one answer (`tpot` in vLLM's words)."""
    e2e_ms: float | None = Field(default=None, gt=0)

    @property
    def any(self) -> bool:
        """True if there is something to judge by."""
        return any(one is not None for one in (self.ttft_ms, self.itl_ms, self.e2e_ms))


class SweepPlan(Message):
    """Where a search for the highest load begins, and where it must end."""

    first: float = Field(default=1, gt=0)
    most: float = Field(default=256, gt=0)
    precision: float = Field(default=0.15, gt=0, le=1)
    """It ends when the lowest bad load is at most this share above the highest good one."""
    good_share: float = Field(default=0.95, gt=0, le=1)
    """A load is good while this share of its requests meets the targets."""
    most_errors: float = Field(default=0.02, ge=0, le=1)
    """Share of requests that may fail."""
    budget_seconds: float = Field(default=1800, gt=0)


class LoadPlan(Message):
    """Which loads, how long each, and how often."""

    by: LoadKind = "concurrency"
    values: list[float] = Field(default=[], max_length=32)
    """Fixed loads, in order; with a sweep they are found."""
    sweep: SweepPlan | None = None
    requests: int | None = Field(default=None, ge=1, le=MOST_REQUESTS)
    seconds: float | None = Field(default=None, gt=0, le=7200)
    """Instead of a number of requests: as many as fill about this time."""
    repeats: int = Field(default=1, ge=1, le=10)
    warmups: int = Field(default=1, ge=0, le=1000)
    """Requests before each run that don't count."""
    burstiness: float = Field(default=1, gt=0)
    """1: Poisson arrivals; less: in bursts; more: evenly. Only for rates."""
    seed: int = Field(default=0, ge=0, le=2**31)
    ignore_eos: bool = True
    run_limit_seconds: float = Field(default=900, gt=0)
    """A run that takes longer is ended: that load is too much."""

    @model_validator(mode="after")
    def _complete(self) -> "LoadPlan":
        if (self.requests is None) == (self.seconds is None):
            raise ValueError("give a number of requests or a time, not both")
        if bool(self.values) == (self.sweep is not None):
            raise ValueError("give loads or a sweep, not both")
        if any(value <= 0 for value in self.values):
            raise ValueError("a load must be more than 0")
        return self


class RemoteTarget(Message):
    """An OpenAI-compatible server that is not an instance of this host. Its key comes sealed, as `target_key`."""

    url: str = Field(pattern=r"^https?://[^\s/]+[^\s]*$", max_length=400)
    """Without `/v1/…`."""
    model: str = Field(min_length=1, max_length=300)


class BenchmarkPayload(Message):
    """Measure an instance of this host, or another server from here."""

    instance: UUID | None = None
    start: int = 1
    remote: RemoteTarget | None = None
    engine: str
    """Whose `vllm bench serve` is run."""
    tokenizer_path: str
    devices: list[str] = []
    """Uuids of the devices that are measured: one benchmark at a time on each."""
    workload: Workload
    loads: LoadPlan
    targets: Targets = Targets()

    @model_validator(mode="after")
    def _one_target(self) -> "BenchmarkPayload":
        if (self.instance is None) == (self.remote is None):
            raise ValueError("name an instance or a remote server")
        return self


class Latency(Message):
    """A time's distribution over the requests (or tokens) of one run, in milliseconds."""

    mean: float
    p50: float
    p75: float | None = None
    p90: float | None = None
    p95: float
    p99: float


class RunNumbers(Message):
    """What one run came to, the same for all engine versions."""

    seconds: float
    completed: int
    failed: int
    requests_per_second: float
    output_tokens_per_second: float
    total_tokens_per_second: float
    input_tokens: int
    output_tokens: int
    goodput_per_second: float | None = None
    """Requests per second that met the targets; None without targets."""
    most_concurrent: float | None = None
    latencies: dict[str, Latency] = {}
    """`ttft`, `tpot`, `itl`, `e2e`; missing where nothing was completed."""
    errors: dict[str, int] = {}
    """First words of an error to the number of requests that met it."""

    @property
    def error_share(self) -> float:
        """Failed requests as a share of all."""
        asked = self.completed + self.failed
        return self.failed / asked if asked else 1.0

    @property
    def good_share(self) -> float | None:
        """Requests that met the targets as a share of the ones that were completed; None without targets."""
        if self.goodput_per_second is None:
            return None
        return min(1.0, self.goodput_per_second / self.requests_per_second) if self.requests_per_second else 0.0


class RequestTimes(Message):
    """One request of a run. `at`: seconds from the run's first request."""

    at: float
    ttft_ms: float
    e2e_ms: float
    output_tokens: int
    ok: bool = True


class HostLoad(Message):
    """How busy the host was while a run went on: shares of all cores, bytes of memory."""

    cpu_share: float
    load_average: float
    memory_available: int


class Run(Message):
    """One run at one load."""

    key: str
    """Names it within its benchmark, such as `concurrency-4.2`: kind, load, number of the repeat."""
    by: LoadKind
    load: float
    repeat: int
    """From 1."""
    prompts: int
    numbers: RunNumbers | None = None
    """None: it was ended, or came to nothing; `problem` says why."""
    problem: str = ""
    requests: list[RequestTimes] = []
    requests_left_out: int = 0
    """Of a long run, evenly spaced requests stand above, and so many don't."""
    argv: list[str] = []
    attempt: int | None = None
    began_at: float = 0
    """Seconds since the epoch on the host's clock: shown, never compared."""
    host: HostLoad | None = None


class BenchmarkResult(Message):
    """How a benchmark ended. `best_load` is the highest load that met the targets (sweeps only)."""

    runs: int
    loads: list[float]
    best_load: float | None = None
    ended_because: str = ""
    """Why a sweep looked no further: `found`, `most`, `saturated`, `errors`, `time`, `first_too_much`."""
    attempt: int | None = None
    engine: str = ""
    engine_version: str = ""
    seconds: float = 0


class QualityPayload(Message):
    """Ask an instance of this host the question set (`workers.vllm.quality`), each question at temperature 0."""

    instance: UUID
    start: int = 1
    devices: list[str] = []
    """As in `BenchmarkPayload`: nothing else is measured there meanwhile."""


class QualityAnswer(Message):
    """One question's answer, as it came."""

    question: str
    """Its key in the set."""
    answer: str
    right: bool


class QualityResult(Message):
    """How a question set was answered. Only results of the same `question_set` can be compared."""

    question_set: str
    answers: list[QualityAnswer]
    attempt: int | None = None
    seconds: float = 0

    @property
    def right(self) -> int:
        """Questions that were answered rightly."""
        return sum(one.right for one in self.answers)
