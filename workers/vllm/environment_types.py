"""What the environment card is made of: lines with a verdict, and what is judged."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from workers.host_facts import EngineEnvironment, Gpu, GpuReading, HostFacts

Verdict = Literal["failure", "warning", "unknown", "ok"]
WORST_FIRST: tuple[Verdict, ...] = ("failure", "warning", "unknown", "ok")

GIB = 2**30


@dataclass(frozen=True)
class Line:
    """One line of the card.

    Attributes:
        code: `environment.<subject>`, stable, for steps and tests.
        verdict: failure, warning, unknown or ok.
        title: what was looked at.
        fact: what was found.
        need: what an engine needs; empty when there is nothing to compare.
        fix: the next thing to do; empty when all is well.
    """

    code: str
    verdict: Verdict
    title: str
    fact: str
    need: str = ""
    fix: str = ""


@dataclass(frozen=True)
class Judged:
    """What the judgement is about: the host as it is now, one engine of it or none, and the console's view of its clock."""

    facts: HostFacts
    gpus: GpuReading
    engine: EngineEnvironment | None = None
    clock_skew_seconds: float | None = None
    world_size: int | None = None
    """GPUs that one instance would use; None: the card is about the host, not about a deployment."""

    @property
    def on_gpu(self) -> bool:
        """True for an engine that computes on NVIDIA GPUs."""
        return self.engine is not None and self.engine.platform == "cuda"

    @property
    def usable(self) -> list[Gpu]:
        """GPUs and MIG instances that an engine could take."""
        return [gpu for gpu in self.gpus.gpus if gpu.usable]


Check = Callable[[Judged], Iterator[Line]]


def gib(size: int | None) -> str:
    """A size for a line of the card."""
    if size is None:
        return "?"
    return f"{size / GIB:.1f} GiB" if size >= GIB else f"{size >> 20} MiB"
