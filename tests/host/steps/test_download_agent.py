"""A real agent that is killed while it downloads: dispatched again, the step goes on where it was."""

import os
import random
import signal

import pytest

from tests.host.conftest import Console, HostUnderTest, wait_for
from tests.standin.hub import Faults, Hub
from workers.contracts import StepKind

NAME = "makers/tiny-chat"


@pytest.mark.long
def test_a_killed_agents_download_goes_on_with_the_next_dispatch(
    hub: Hub, host: HostUnderTest, console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HF_HOME", "HF_HUB_CACHE"):
        monkeypatch.delenv(name, raising=False)
    weights = random.Random(5).randbytes(12_000_000)
    repository = hub.add(NAME, {"config.json": b"{}", "model.safetensors": weights})
    order = {"source": "mirror", "endpoint": hub.url, "repository": NAME, "commit": repository.commit}
    hub.faults = Faults(rate=2e6, block=16_384)
    agent = host.start_agent()
    console.dispatch(31, StepKind.DOWNLOAD, order, fence=1)
    wait_for(lambda: hub.sent["model.safetensors"] > 3_000_000, what="the first bytes")
    os.kill(agent.pid, signal.SIGKILL)
    agent.wait()
    hub.faults = Faults()
    host.start_agent()
    # As the console does it: a new agent's first sign of life says that the step was lost. A message sent in the very
    # moment of the kill goes to the dead worker's connection (delivery is at most once).
    wait_for(lambda: len({beat["agent_boot"] for beat in console.heartbeats()}) == 2, what="the new agent's heartbeat")
    console.dispatch(31, StepKind.DOWNLOAD, order, fence=2)
    finished = console.finished(31, fence=2)
    assert finished["outcome"] == "succeeded"
    assert finished["result"]["fetched_bytes"] < 10_000_000
    blobs = host.config.models_dir / "hub" / "models--makers--tiny-chat" / "blobs"
    assert (blobs / repository.files["model.safetensors"].sha256).read_bytes() == weights
