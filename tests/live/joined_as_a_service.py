"""Run inside a real systemd only, by test_join_as_a_service.py: one host's life as a service, in this order.

The console runs from a copy of the code, so that it can become a newer one: the wheel of its agent changes with the code.
"""

import json
import os
import pwd
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import redis

from tests.live.conftest import MODEL, engine_cache
from tests.live.harness import ROOT, wait_for
from tests.live.joining import OpenConsole, deploy, host_id, is_online, join_command, serving
from tests.live.namespaces import bare_environment, register_standin_engine
from workers.host_config import HostConfig

NAME = "gpu-s"
UNIT = f"slipway-host-{NAME}.service"
PERSON = "slip"
KEPT = "systemd, each in a unit of its own"


@dataclass
class Service:
    """The console and the host that joined it as a service."""

    console: OpenConsole
    home: Path

    @property
    def config(self) -> dict[str, Any]:
        answer: dict[str, Any] = json.loads((self.home / "slipway" / "hosts" / NAME / "host.json").read_text())
        return answer

    @property
    def versions(self) -> Path:
        return self.home / "slipway" / "agent"

    def current(self) -> str:
        return (self.home / "slipway" / "hosts" / NAME / "current").resolve().name

    def said_version(self) -> str:
        return str(self.console.one("select agent_version from fleet_host where name = ?", NAME))

    def restart_console(self, path: str, text: str) -> None:
        """Stop the console, give a file of its code another text, start it: what a person does who upgrades it."""
        self.console.process.send_signal(signal.SIGTERM)  # type: ignore[union-attr]
        self.console.process.wait(60)  # type: ignore[union-attr]
        (self.console.root / path).write_text(text)
        self.console.up()
        wait_for("the host is online again", lambda: is_online(self.console, NAME), seconds=120)

    def code(self, path: str) -> str:
        return (self.console.root / path).read_text()

    def upgrade(self) -> int:
        """Press “Upgrade” on the host's page; returns the job."""
        self.console.post(f"/hosts/{host_id(self.console, NAME)}/upgrade/", {"reason": "a newer console"})
        return int(wait_for(
            "the upgrade's job stands",
            lambda: self.console.one("select max(id) from jobs_job where kind = 'upgrade_agent'"), seconds=20,
        ))  # fmt: skip


def shown(name: str, unit: str = UNIT) -> str:
    return subprocess.check_output(["systemctl", "show", "--value", "-p", name, unit], text=True).strip()


def page_of(console: OpenConsole, host: str) -> str:
    return console.get(f"/hosts/{host_id(console, host)}/").text


def main_pid() -> int:
    return int(shown("MainPID"))


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    code = tmp_path_factory.mktemp("code")
    for name in ("console", "workers", "templates", "static"):
        shutil.copytree(ROOT / name, code / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("manage.py", "pyproject.toml"):
        shutil.copy(ROOT / name, code)
    console = OpenConsole(
        tmp_path_factory.mktemp("console"), root=code, options=("--no-host",),
        addresses="127.0.0.1", wheels=Path(os.environ["SLIPWAY_TEST_WHEELS"]),
    )  # fmt: skip
    home = tmp_path_factory.mktemp("machine")
    with console.running():
        yield Service(console, home)
        subprocess.run(["systemctl", "stop", UNIT], check=False, timeout=60)


def test_the_command_with_systemd_makes_a_service_that_starts_at_every_boot(service: Service) -> None:
    register_standin_engine(service.home / "slipway" / "engines")
    words = [*shlex.split(join_command(service.console, NAME)), "--systemd"]
    done = subprocess.run(
        words,
        env=bare_environment(service.home),
        cwd=service.home,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert f"its agent runs as a service: /etc/systemd/system/{UNIT}" in done.stdout
    assert shown("ActiveState") == "active"
    assert shown("UnitFileState") == "enabled"
    assert shown("KillMode") == "process"
    wait_for("the host is online", lambda: is_online(service.console, NAME), seconds=120)
    assert service.config["driver"] == "systemd"
    wait_for("the page says how engines are kept", lambda: KEPT in page_of(service.console, NAME), seconds=60)
    assert "It is the version that this console comes with." in page_of(service.console, NAME)


def test_an_engine_gets_a_unit_of_its_own_and_outlives_its_agent_s_crash_and_restart(service: Service) -> None:
    console = service.console
    console.wait_job(deploy(console, NAME, "standin", (engine_cache() / "models" / MODEL).resolve()), seconds=400)
    port, pid = serving(console, NAME)
    unit = next(
        line.rpartition("/")[2]
        for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines()
        if line.startswith("0::")
    )
    assert unit.startswith("slipway-")
    assert unit != UNIT
    keeper = main_pid()
    os.kill(keeper, signal.SIGKILL)
    wait_for("systemd starts the keeper again", lambda: main_pid() not in (0, keeper), seconds=30)
    subprocess.run(["systemctl", "restart", UNIT], check=True, timeout=60)
    restarted = time.time()
    wait_for(
        "the new agent is heard of",
        lambda: console.one(
            "select cast(strftime('%s', last_seen_at) as integer) > ? from fleet_host where name = ?",
            restarted + 1,
            NAME,
        ),
        seconds=90,
    )
    assert serving(console, NAME) == (port, pid)
    assert Path(f"/proc/{pid}").exists()
    assert shown("ActiveState", unit) == "active"
    assert console.one("select restarts from deployments_instance") == 0


def test_the_page_upgrades_the_agent_and_engines_go_on(service: Service) -> None:
    console = service.console
    old, served = service.said_version(), serving(console, NAME)
    service.restart_console("workers/host/vitals.py", service.code("workers/host/vitals.py") + "\n# a newer console\n")
    assert "An upgrade is ready" in page_of(console, NAME)
    console.wait_job(service.upgrade(), seconds=400)
    new = service.said_version()
    assert new != old
    assert (service.current(), (service.versions / old).is_dir()) == (new, True)
    assert "It is the version that this console comes with." in page_of(console, NAME)
    assert serving(console, NAME) == served
    assert Path(f"/proc/{served[1]}").exists()
    assert shown("ActiveState") == "active"


def test_a_version_that_can_t_start_is_taken_back_by_itself(service: Service) -> None:
    console = service.console
    good, served = service.said_version(), serving(console, NAME)
    # It passes the self-test: only a real start shows it.
    broken = "\nimport sys\nif 'run' in sys.argv:\n    raise RuntimeError('broken on the way')\n"
    path = "workers/host/agent_lock.py"
    sound = service.code(path)
    service.restart_console(path, sound + broken)
    job = service.upgrade()
    console.wait_job(job, to="failed", seconds=400)
    failure = console.get(f"/jobs/{job}/").text
    assert "was not kept" in failure
    assert "broken on the way" in failure
    wait_for("the host is online", lambda: is_online(console, NAME), seconds=60)
    assert (service.said_version(), service.current()) == (good, good)
    assert serving(console, NAME) == served
    assert Path(f"/proc/{served[1]}").exists()
    service.restart_console(path, sound)  # whoever joins next gets what the console has


def test_a_person_without_rights_joins_as_a_service_of_her_own(service: Service) -> None:
    """Nobody is signed in as her: as with `sudo -u`, there is no session and no manager of hers."""
    for words in (["useradd", "--create-home", PERSON], ["systemctl", "start", "dbus.socket", "systemd-logind"]):
        subprocess.run(words, check=True, timeout=60)
    home = Path(pwd.getpwnam(PERSON).pw_dir)
    surroundings = [f"{name}={value}" for name, value in bare_environment(home).items()]
    subprocess.run(["chown", "--recursive", PERSON, str(home)], check=True, timeout=60)
    command = [*shlex.split(join_command(service.console, "gpu-u")), "--systemd"]
    as_her = ["runuser", "-u", PERSON, "--", "env", "-i", *surroundings]
    done = subprocess.run([*as_her, *command], cwd=home, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    unit = home / ".config" / "systemd" / "user" / "slipway-host-gpu-u.service"
    assert f"its agent runs as a service: {unit}" in done.stdout
    assert unit.exists()
    assert Path("/var/lib/systemd/linger", PERSON).exists(), "it starts at boot"
    wait_for("the host is online", lambda: is_online(service.console, "gpu-u"), seconds=120)
    wait_for("the page says how engines are kept", lambda: KEPT in page_of(service.console, "gpu-u"), seconds=60)
    assert "no systemd manager of this user" not in page_of(service.console, "gpu-u")


def test_a_host_that_is_removed_has_no_way_in_at_once(service: Service) -> None:
    home = Path(pwd.getpwnam(PERSON).pw_dir)
    config = HostConfig.load(home / "slipway" / "hosts" / "gpu-u" / "host.json")
    broker = redis.Redis.from_url(config.redis_url, ssl_ca_data=config.broker_ca)
    assert broker.ping()
    service.console.post(f"/hosts/{host_id(service.console, 'gpu-u')}/remove/", {"reason": "end"})
    with pytest.raises(redis.RedisError):
        broker.ping()
    assert "gpu-u" not in service.console.get("/hosts/").text
