"""A Redis of one's own, by TLS alone, with a certificate authority that no machine knows: console and host, for real."""

import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
import redis

from console import env
from console.common import authority
from tests.live.conftest import MODEL, engine_cache
from tests.live.harness import ROOT, processes_of, wait_for
from tests.live.joining import OpenConsole, deploy, is_online, join_command, serving
from tests.live.namespaces import register_standin_engine
from tests.ports import free_port
from workers.app import tls_options
from workers.host_config import HostConfig

pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(900),
    pytest.mark.skipif(shutil.which("redis-server") is None, reason="redis-server is not installed"),
]
NAME = "gpu-t"


@dataclass
class TlsRedis:
    """redis-server without a plain port. It keeps no users: each start has forgotten those of hosts."""

    directory: Path
    certificate: Path
    ca: Path
    port: int
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"rediss://:secret@127.0.0.1:{self.port}/0?ssl_ca_certs={self.ca}"

    def start(self) -> None:
        options = {
            "port": 0, "tls-port": self.port, "tls-cert-file": self.certificate, "tls-key-file": self.certificate,
            "tls-ca-cert-file": self.ca, "tls-auth-clients": "no", "requirepass": "secret", "dir": self.directory,
            "save": "", "appendonly": "yes", "logfile": "redis.log",
        }  # fmt: skip
        words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
        self.process = subprocess.Popen(["redis-server", *words])
        wait_for("Redis answers by TLS", self._answers, seconds=60)

    def _answers(self) -> bool:
        with suppress(redis.RedisError):
            return bool(redis.Redis.from_url(self.url).ping())
        return False

    def stop(self) -> None:
        if self.process is not None:
            self.process.terminate()
            self.process.wait(30)


@dataclass
class TlsConsole(OpenConsole):
    """A console that is given that Redis."""

    redis_url: str = ""

    def environment(self) -> dict[str, str]:
        return super().environment() | {"REDIS_URL": self.redis_url}


@pytest.fixture
def broker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TlsRedis]:
    settled = env.environment().model_copy(update={"slipway_home": tmp_path / "other"})
    with monkeypatch.context() as patch:
        patch.setattr(env, "environment", lambda: settled)
        (tmp_path / "other" / "console").mkdir(parents=True)
        authority.certificate_for(["127.0.0.1"])
        made = TlsRedis(tmp_path, authority.certificate_path(), authority.directory() / "ca.pem", free_port())
    made.start()
    yield made
    made.stop()


@pytest.fixture
def console(tmp_path: Path, broker: TlsRedis) -> Iterator[OpenConsole]:
    made = TlsConsole(tmp_path / "home", addresses="127.0.0.1", redis_url=broker.url)
    with made.running():
        yield made


def test_a_host_joins_by_redis_own_tls_with_its_authority_pinned(
    console: OpenConsole, broker: TlsRedis, tmp_path: Path
) -> None:
    home = tmp_path / "machine"
    register_standin_engine(home / "engines")
    # The machine has Slipway already: what it installs is looked at elsewhere.
    given = shlex.split(join_command(console, NAME))
    words = [sys.executable, "-m", "workers.cli", "host", "join", given[3], *given[5:]]
    surroundings = console.environment() | {"SLIPWAY_HOME": str(home)}
    del surroundings["REDIS_URL"]
    done = subprocess.run(words, cwd=ROOT, env=surroundings, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    config = HostConfig.load(home / "hosts" / NAME / "host.json")
    try:
        wait_for("the host is online", lambda: is_online(console, NAME), seconds=90)
        assert config.redis_url.startswith("rediss://")
        assert config.broker_ca == broker.ca.read_text()
        assert config.broker_ca != config.console_ca
        with pytest.raises(redis.ConnectionError, match="CERTIFICATE_VERIFY_FAILED"):
            redis.Redis.from_url(config.redis_url, **tls_options(config.redis_url, config.console_ca)).ping()
        console.wait_job(deploy(console, NAME, "standin", (engine_cache() / "models" / MODEL).resolve()), seconds=300)
        served = serving(console, NAME)
        broker.stop()
        seen = console.one("select last_seen_at from fleet_host where name = ?", NAME)
        broker.start()
        wait_for(
            "the forgotten user is made again, and the host is heard of",
            lambda: console.one("select last_seen_at > ? from fleet_host where name = ?", seen, NAME), seconds=90,
        )  # fmt: skip
        assert serving(console, NAME) == served
        console.post(f"/deployments/{console.one('select id from deployments_deployment')}/stop/", {"reason": "end"})
        wait_for("it stops", lambda: console.one("select state from deployments_deployment") == "stopped", seconds=90)
    finally:
        for pid in processes_of(home):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
