"""The environment card of a host and its engines: what the agent told, judged by `workers.vllm.environment`."""

from dataclasses import dataclass

from console.fleet.models import Engine, Host
from workers.host_facts import EngineEnvironment, GpuReading, HostFacts, facts_of, live_of
from workers.vllm.environment import WORST_FIRST, Line, judge


@dataclass(frozen=True)
class Section:
    """The lines about the host itself (`engine` None), or those that one engine adds."""

    engine: Engine | None
    lines: tuple[Line, ...]

    def having(self, *verdicts: str) -> list[Line]:
        """The lines with one of these verdicts."""
        return [line for line in self.lines if line.verdict in verdicts]

    @property
    def worst(self) -> str:
        """The worst verdict; `ok` when there are no lines."""
        return self.lines[0].verdict if self.lines else "ok"


@dataclass(frozen=True)
class Card:
    """All sections, the host's first."""

    sections: tuple[Section, ...]

    @property
    def troubles(self) -> list[tuple[list[Engine], Line]]:
        """Failures, then warnings, each once with the engines that it is about; no engines: the host itself."""
        found: dict[Line, list[Engine]] = {}
        for section in self.sections:
            for line in section.having("failure", "warning"):
                found.setdefault(line, []).extend([section.engine] if section.engine else [])
        return sorted(
            ((engines, line) for line, engines in found.items()), key=lambda pair: WORST_FIRST.index(pair[1].verdict)
        )

    def number(self, verdict: str) -> int:
        """How many troubles have this verdict."""
        return sum(line.verdict == verdict for _engines, line in self.troubles)


def facts_of_host(host: Host) -> HostFacts | None:
    """What the host's agent told of it; None for an older agent."""
    return facts_of(host.facts)


def now(host: Host, facts: HostFacts) -> tuple[HostFacts, GpuReading]:
    """The facts with the memory of the last heartbeat, and its reading of the GPUs: newer than the inventory's."""
    live = live_of(host.vitals)
    if live is None:
        return facts, facts.gpus
    return (facts.model_copy(update={"memory": live.memory}) if live.memory else facts), live.gpus


def card(host: Host, engines: list[Engine]) -> Card | None:
    """Judge the host and each of its engines. None: its agent tells too little."""
    told = facts_of_host(host)
    if told is None:
        return None
    facts, reading = now(host, told)
    skew = host.clock_skew_seconds
    own = judge(facts, reading, clock_skew_seconds=skew)
    known = {engine.key: engine for engine in facts.engines}
    sections = [Section(None, own)]
    for engine in engines:
        inside = known.get(engine.key) or EngineEnvironment(
            key=engine.key, version=engine.version, platform=engine.platform
        )
        lines = judge(facts, reading, inside, clock_skew_seconds=skew)
        sections.append(Section(engine, tuple(line for line in lines if line not in own)))
    return Card(tuple(sections))


def count(host: Host) -> tuple[int, int]:
    """Failures and warnings on the host's card, for lists."""
    found = card(host, list(host.engines.filter(present=True))) if host.pk else None
    return (found.number("failure"), found.number("warning")) if found else (0, 0)
