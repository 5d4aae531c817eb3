"""The keeper: upgrades of a real agent beside a serving engine, and the way back."""

import io
import os
import signal
import site
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from console.fleet import host_wheel
from tests.host.conftest import Broker, Console, HostUnderTest, make_host, wait_for
from workers.contracts import StepKind
from workers.host.keeper import Trial, current_link, point_current
from workers.host.vitals import agent_version

SITE = next(path for path in site.getsitepackages() if path.endswith("site-packages"))


def make_version(home: Path, *, broken: str = "") -> Path:
    """An environment as the upgrade step makes it: the wheel's files in it, and what it needs from this environment."""
    wheel = host_wheel.current()
    directory = home / "agent" / wheel.version
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(directory)], check=True, timeout=120)
    packages = next(directory.glob("lib/python*/site-packages"))
    with zipfile.ZipFile(io.BytesIO(wheel.content)) as archive:
        archive.extractall(packages)
    (packages / "needed.pth").write_text(SITE + "\n")
    if broken:
        (packages / "workers" / "host" / "seat.py").write_text(broken)
    (directory / "bin" / "slipway").write_text("#!/bin/sh\n")
    (directory / "bin" / "slipway").chmod(0o755)
    (directory / "complete").touch()
    return directory


class Kept:
    """A host whose agent has a keeper."""

    def __init__(self, host: HostUnderTest, home: Path) -> None:
        self.host = host
        self.home = home
        point_current(host.path, Path(sys.prefix))
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, heartbeat_seconds: float = 60) -> None:
        code = (
            "import sys; from pathlib import Path; from workers.host.keeper import Keeper;"
            "sys.exit(Keeper(Path(sys.argv[1]), Path(sys.argv[2]), heartbeat_seconds=float(sys.argv[3])).run())"
        )
        words = [sys.executable, "-P", "-c", code, str(self.host.path), str(self.host.config.state_dir)]
        with self.host.log.open("ab") as log:
            self.process = subprocess.Popen(
                [*words, str(heartbeat_seconds)],
                env=os.environ | {"SLIPWAY_HOME": str(self.home)},
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def end(self) -> None:
        if self.process and self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            self.process.wait(60)


@pytest.fixture
def kept(tmp_path: Path, shared_broker: Broker) -> Iterator[Kept]:
    host = make_host(tmp_path, shared_broker)
    found = Kept(host, tmp_path / "home")
    yield found
    found.end()
    host.end()


@pytest.fixture
def console(shared_broker: Broker, kept: Kept) -> Console:
    return Console(shared_broker, kept.host.config)


def payload() -> dict[str, Any]:
    wheel = host_wheel.current()
    return {"version": wheel.version, "wheel": wheel.name, "sha256": wheel.sha256}


def agents(console: Console) -> list[tuple[int, str]]:
    seen = [(beat["agent_pid"], beat["agent_version"]) for beat in console.heartbeats()]
    return list(dict.fromkeys(seen))


def serve(kept: Kept, console: Console) -> list[int]:
    """Start an instance and return the pids of shim and engine."""
    order = kept.host.order()
    console.want(order)
    console.wait_phase(order.instance, "ready")
    return sorted(kept.host.processes(order))


@pytest.mark.long
def test_an_upgrade_switches_the_agent_and_touches_no_engine(kept: Kept, console: Console) -> None:
    directory = make_version(kept.home)
    kept.start()
    wait_for(lambda: agents(console), what="the old agent's heartbeat")
    assert console.heartbeats()[-1]["vitals"]["kept"]
    before = serve(kept, console)
    console.dispatch(1, StepKind.UPGRADE_AGENT, payload(), deadline=300)
    new = host_wheel.current().version
    wait_for(lambda: agents(console)[-1][1] == new, what="the new agent's heartbeat")
    wait_for(lambda: (trial := Trial.load(kept.host.path)) and trial.state == "kept", what="the keeper's verdict")
    assert current_link(kept.host.path).resolve() == directory.resolve()
    console.dispatch(1, StepKind.UPGRADE_AGENT, payload(), fence=2, deadline=300)
    result = console.finished(1, outcome="succeeded")["result"]
    assert (result["version"], result["previous"]) == (new, agent_version())
    assert all(Path(f"/proc/{pid}").exists() for pid in before)
    assert not console.bodies("attempt.ended")


@pytest.mark.long
def test_a_version_that_ends_at_once_is_not_kept_and_its_last_words_are_told(kept: Kept, console: Console) -> None:
    make_version(kept.home, broken="raise ImportError('no such library here')\n")
    kept.start()
    wait_for(lambda: agents(console), what="the old agent's heartbeat")
    before = serve(kept, console)
    first = agents(console)
    console.dispatch(1, StepKind.UPGRADE_AGENT, payload(), deadline=300)
    wait_for(lambda: len(agents(console)) > len(first), what="the old version again")
    console.dispatch(1, StepKind.UPGRADE_AGENT, payload(), fence=2, deadline=300)
    failure = console.finished(1, outcome="failed")["failure"]
    assert failure["code"] == "agent.rolled_back"
    assert "before its first heartbeat" in failure["message"]
    assert "no such library here" in str(failure["evidence"])
    assert {version for _pid, version in agents(console)} == {agent_version()}
    assert current_link(kept.host.path).resolve() == Path(sys.prefix).resolve()
    assert all(Path(f"/proc/{pid}").exists() for pid in before)
    assert not console.bodies("attempt.ended")


@pytest.mark.long
def test_a_version_without_a_heartbeat_is_given_up_in_time(kept: Kept, console: Console) -> None:
    directory = make_version(kept.home, broken="import time\ntime.sleep(600)\n")
    kept.start(heartbeat_seconds=4)
    wait_for(lambda: agents(console), what="the old agent's heartbeat")
    first = agents(console)
    Trial(version="x", directory=directory, step=1).save(kept.host.path)
    wait_for(lambda: len(agents(console)) > len(first), what="the old version again")
    trial = Trial.load(kept.host.path)
    assert trial
    assert (trial.state, trial.reason) == (
        "rolled_back",
        "its first heartbeat did not reach the broker within 4 s",
    )


def test_an_agent_that_is_killed_is_started_again_and_one_that_has_no_keeper_says_so(
    kept: Kept, console: Console
) -> None:
    kept.start()
    wait_for(lambda: agents(console), what="a heartbeat")
    os.kill(agents(console)[0][0], signal.SIGKILL)
    wait_for(lambda: len(agents(console)) == 2, what="the next agent's heartbeat")
    kept.end()
    kept.host.start_agent()
    wait_for(lambda: len(agents(console)) == 3, what="the unkept agent's heartbeat")
    console.dispatch(7, StepKind.UPGRADE_AGENT, payload())
    assert console.finished(7, outcome="failed")["failure"]["code"] == "agent.no_keeper"


def test_a_keeper_that_is_killed_takes_its_agent_with_it(kept: Kept, console: Console) -> None:
    kept.start()
    wait_for(lambda: agents(console), what="a heartbeat")
    assert kept.process
    kept.process.kill()
    kept.process.wait()
    agent = agents(console)[0][0]
    wait_for(lambda: not Path(f"/proc/{agent}/exe").exists(), what="the agent's end")
