"""Slipway's own requests are told from everybody's: none of a person's is ever taken for a probe."""

from uuid import UUID

from tests.telemetry.samples import FakeLoad
from workers.host.own_requests import OwnRequests, Probes, no_probes

ENGINE = UUID(int=1)


def probe(load: FakeLoad) -> None:
    load.answer(1, tokens=1, prompt=2, reason="length")


def seen(
    own: OwnRequests, load: FakeLoad, at: float, *, ready: bool = True, asked: Probes | None = None
) -> float | None:
    probes = asked or Probes()
    return own.since(ENGINE, 1, load.sample(at), ready=ready, asked=probes, probes=lambda: probes)


def test_everything_before_readiness_is_our_own_and_so_is_what_the_warm_up_still_counted() -> None:
    own, load = OwnRequests(), FakeLoad()
    load.answer(9)
    assert seen(own, load, 1, ready=False) == 0
    load.answer(2)
    assert seen(own, load, 2) == 0
    load.answer(1)
    assert seen(own, load, 3) is None


def test_a_probe_of_an_idle_engine_is_our_own() -> None:
    own, load = OwnRequests(), FakeLoad()
    seen(own, load, 1)
    probe(load)
    assert seen(own, load, 2, asked=Probes(begun=1)) == 1
    assert seen(own, load, 3, asked=Probes(begun=1)) is None
    load.answer(1)
    assert seen(own, load, 4, asked=Probes(begun=1)) is None


def test_a_slow_probe_is_our_own_while_it_runs_and_when_it_ends() -> None:
    own, load = OwnRequests(), FakeLoad()
    seen(own, load, 1)
    load.running = 1
    assert seen(own, load, 2, asked=Probes(begun=1, running=1)) == 1
    load.running = 0
    probe(load)
    assert seen(own, load, 3, asked=Probes(begun=1)) == 2


def test_a_request_beside_a_probe_counts() -> None:
    for other in ("answered", "running"):
        own, load = OwnRequests(), FakeLoad()
        seen(own, load, 1)
        probe(load)
        if other == "answered":
            load.answer(1, tokens=1, prompt=2)
        else:
            load.running = 1
        assert seen(own, load, 2, asked=Probes(begun=1)) is None, other


def test_a_long_answer_in_place_of_the_probes_counts() -> None:
    own, load = OwnRequests(), FakeLoad()
    seen(own, load, 1)
    load.answer(1, tokens=20)
    assert seen(own, load, 2, asked=Probes(begun=1, running=1)) is None


def test_a_first_look_at_a_ready_engine_claims_nothing() -> None:
    own, load = OwnRequests(), FakeLoad()
    load.answer(5)
    assert seen(own, load, 1) is None
    own.keep(set())
    assert own.since(ENGINE, 2, load.sample(2), ready=True, asked=Probes(1), probes=no_probes) is None
