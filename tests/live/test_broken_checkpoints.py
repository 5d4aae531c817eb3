"""Checkpoints with which a real vLLM answers /health 200, and which must never get ready: validation's reason to be."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.host.conftest import Broker, Console, HostUnderTest, make_host, wait_for
from tests.live.broken_models import BROKEN
from tests.live.conftest import ENGINE, MODEL, engine_cache

pytestmark = [pytest.mark.live, pytest.mark.timeout(1200)]

EXPECTED = {
    "no template": ("chat_template.missing",),
    "no tokenizer": ("tokenizer.missing",),
    # The layer computes with whatever lies in its memory: the answer may be nonsense, or may be right all the same.
    "a tensor missing": ("answer.", "weights.tensor_missing"),
    # Where the engine has a fallback for the head size, it lives on, and the random weights talk nonsense.
    "unsupported head size": ("engine.", "attention.", "unknown", "process.", "answer."),
}


@pytest.fixture
def host(tmp_path: Path) -> Iterator[HostUnderTest]:
    directory = tmp_path / "broker"
    directory.mkdir()
    broker = Broker(directory)
    broker.start()
    made = make_host(tmp_path, broker)
    (made.config.engines_dir / ENGINE).symlink_to(engine_cache() / "engines" / ENGINE)
    made.broker = broker  # type: ignore[attr-defined]
    yield made
    made.end()
    broker.kill()


@pytest.mark.parametrize(
    "kind", ["no template", *(pytest.param(kind, marks=pytest.mark.long) for kind in list(BROKEN)[1:])]
)
def test_a_broken_checkpoint_that_answers_health_200_never_gets_ready(host: HostUnderTest, kind: str) -> None:
    console = Console(host.broker, host.config)  # type: ignore[attr-defined]
    model = host.config.models_dir / "broken"
    BROKEN[kind](engine_cache() / "models" / MODEL, model)
    order = host.order(
        engine=ENGINE, model_path=str(model), probe={"expected": "Paris"},
        arguments=["--enforce-eager", "--max-model-len", "512", "--max-num-seqs", "4"],
    )  # fmt: skip
    host.start_agent()
    console.want(order)
    bad = wait_for(
        lambda: [
            body for body in console.bodies("instance.observed", instance=str(order.instance)) if body["failure"]
        ],
        900,
        what="it is refused",
    )[0]  # fmt: skip
    # It listened, and /health answered 200; without a tokenizer only where sentencepiece is installed beside the engine.
    assert kind == "no tokenizer" or "validating" in console.phases(order.instance)
    assert bad["phase"] in ("unhealthy", "crashed")
    assert bad["failure"]["code"].startswith(EXPECTED[kind]), bad
    assert bad["failure"]["next"]
    assert "ready" not in console.phases(order.instance)
    assert host.files(order).ready_attempt() is None
    print(bad["failure"]["code"], "|", bad["failure"]["message"], "|", bad["failure"]["next"])
