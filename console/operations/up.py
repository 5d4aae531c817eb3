"""Everything that `manage.py up` does: prepare, start the processes of the console, watch them, stop them."""

import fcntl
import json
import os
import signal
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management import call_command
from django.db import connections
from django.db.migrations.executor import MigrationExecutor

from console import env
from console.gateway import plan
from console.operations import embedded_broker, engines, local_host, ports, tls_front
from console.operations.health import EVERY_SECONDS, Watched, reports_are_read
from console.operations.supervisor import Program, StartFailed, Supervisor
from workers.gateway.runtime_api import Away, RuntimeApi

BROKER_PORT = 6390
MARK = "SLIPWAY_CONSOLE_PROCESS"
"""Set, to SLIPWAY_HOME, in the environment of every process that `up` starts: they can be found again by it."""
_HOSTS_KEYS = ("hosts_url", "hosts_web_port", "hosts_redis_url", "hosts_broker_port")
"""What `runtime.json` says while other machines can reach this console, and must not say otherwise."""


@dataclass(frozen=True)
class Running:
    """A console that runs already, in another terminal or for another clone with the same SLIPWAY_HOME."""

    pid: int
    url: str


class AlreadyRunning(Exception):
    """Another `up` holds this SLIPWAY_HOME."""

    def __init__(self, running: Running) -> None:
        super().__init__(f"already running at {running.url} (pid {running.pid})")
        self.running = running


def lock_path() -> Path:
    """File that `up` locks while it runs."""
    return env.environment().console_dir / "up.lock"


def running() -> Running | None:
    """The console that runs for this SLIPWAY_HOME, or None."""
    try:
        with lock_path().open() as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                pid = file.read().strip()
                return Running(int(pid) if pid.isdigit() else 0, env.public_url())
    except FileNotFoundError:
        pass
    return None


class Console:
    """One run of the whole console on this machine."""

    def __init__(self, *, with_host: bool = True) -> None:
        self.with_host = with_host
        self.supervisor = Supervisor(directory=settings.BASE_DIR)
        self._lock = self._take_lock()

    def _take_lock(self) -> int:
        env.environment().console_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor = os.open(lock_path(), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            raise AlreadyRunning(running() or Running(0, env.public_url())) from None
        os.ftruncate(descriptor, 0)
        os.write(descriptor, str(os.getpid()).encode())
        return descriptor

    # -- starting -----------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Bring everything up, in order. Raises StartFailed, NoBroker or OSError; call `stop` then. Main thread only."""
        self.supervisor.listen_to_signals()
        end_leftovers(self.supervisor.say)
        settings.STATIC_ROOT.mkdir(exist_ok=True)
        environment = child_environment()
        self._start_broker(environment)
        self._migrate()
        if not self.supervisor.stopping:
            self._start_the_rest(environment)
        if not self.supervisor.stopping:
            threading.Thread(target=self._watch, name="health", daemon=True).start()
            self.supervisor.say(f"models answer at {env.gateway_url()}/v1")
            self.supervisor.say(f"the console is up: {env.public_url()}")

    def _start_broker(self, environment: dict[str, str]) -> None:
        write_runtime(supervisor_pid=os.getpid(), **dict.fromkeys(_HOSTS_KEYS))
        if env.environment().redis_url:
            if not embedded_broker.answers(env.redis_url()):
                raise OSError("The broker at REDIS_URL does not answer PING. Check its address, user and password.")
            return

        def start() -> int:
            wanted = [int(env.runtime().get("broker_port", BROKER_PORT)), BROKER_PORT]
            port = self._choose("the broker", "127.0.0.1", wanted)
            write_runtime(broker_port=port)
            self._use_broker()
            self.supervisor.start(embedded_broker.program(port, environment))
            return port

        self._despite_others("broker", start)

    def _start_the_rest(self, environment: dict[str, str]) -> None:
        self._choose_web_port()
        self._choose_gateway_ports()
        programs = self._workers(environment)
        if self.with_host:
            programs.append(self._agent(environment))

        def start() -> int:
            port = self._choose_web_port()
            started = self.supervisor.pids()
            rest = [program for program in programs if program.name not in started]
            self.supervisor.start(self._web(environment), *rest)
            return port

        self._despite_others("web", start)
        if env.environment().hosts_names and not self.supervisor.stopping:
            self._open_to_other_machines(environment)

    def _open_to_other_machines(self, environment: dict[str, str]) -> None:
        """Start the TLS front. Its ports are never chosen: hosts know them, and would look for the old ones."""
        settled = env.environment()
        broker_port = None if settled.redis_url else settled.slipway_hosts_broker_port
        for port in filter(None, (settled.slipway_hosts_port, broker_port)):
            if not ports.is_free("0.0.0.0", port):  # noqa: S104 - other machines are meant
                raise OSError(
                    f"Port {port}, at which other machines reach this console, is held by {ports.holder(port)}. "
                    "End that, or set SLIPWAY_HOSTS_PORT and SLIPWAY_HOSTS_BROKER_PORT."
                )
        write_runtime(**tls_front.addresses(settled.slipway_hosts_port, broker_port))
        self.supervisor.start(tls_front.program(environment))
        threading.Thread(target=self._renew_certificate, name="certificate", daemon=True).start()
        self.supervisor.say(f"other machines reach it at {env.hosts_url()}")

    def _renew_certificate(self) -> None:
        while not self.supervisor.stopping:
            time.sleep(tls_front.RENEWAL_CHECK_SECONDS)
            try:
                if tls_front.renew():
                    self.supervisor.say("the certificate for other machines was renewed")
            except OSError as error:
                self.supervisor.say(f"the certificate for other machines could not be renewed: {error}")

    def _despite_others(self, name: str, start: Callable[[], int]) -> None:
        """Start a server again, on another port, when somebody took its port between the look and the start."""
        for last in (False, False, True):
            try:
                start()
            except StartFailed:
                port = int(env.runtime()[f"{name}_port"])
                if last or self._listens(name, port) or ports.is_free("127.0.0.1", port):
                    raise
                self.supervisor.remove(name)
                self.supervisor.say(f"port {port} was taken meanwhile by {ports.holder(port)}")
            else:
                return

    def _listens(self, name: str, port: int) -> bool:
        """True if it is our process that listens there: what answers may be somebody else's."""
        pid = self.supervisor.pids().get(name)
        return pid is not None and ports.is_held_by(pid, port)

    def _choose_web_port(self) -> int:
        known, settled = env.runtime(), env.environment()
        wanted = [settled.slipway_port]
        if known.get("web_port_wanted") == settled.slipway_port and "web_port" in known:
            wanted.insert(0, int(known["web_port"]))
        port = self._choose("the console", settled.slipway_bind, wanted)
        address = "127.0.0.1" if settled.slipway_bind in ("0.0.0.0", "::") else settled.slipway_bind  # noqa: S104 - compared, not bound
        shown = f"[{address}]" if ":" in address else address
        write_runtime(web_port=port, web_port_wanted=settled.slipway_port, console_url=f"http://{shown}:{port}")
        return port

    def _choose_gateway_ports(self) -> None:
        settled, known = env.environment(), env.runtime()
        wanted = [settled.slipway_gateway_port]
        if known.get("gateway_port_wanted") == settled.slipway_gateway_port and "gateway_port" in known:
            wanted.insert(0, int(known["gateway_port"]))
        port = self._choose("the gateway", settled.slipway_gateway_bind, wanted)
        peers = ports.choose("127.0.0.1", [int(known.get("gateway_peer_port", port + 1)), port + 1])
        write_runtime(gateway_port=port, gateway_port_wanted=settled.slipway_gateway_port, gateway_peer_port=peers)

    def _use_broker(self) -> None:
        """This process read its settings before the broker's port was known."""
        settings.REDIS_URL = env.redis_url()
        layers: dict[str, Any] = settings.CHANNEL_LAYERS
        layers["default"]["CONFIG"]["hosts"] = [env.redis_url()]
        local_host.forget_connections()

    def _choose(self, what: str, address: str, candidates: list[int]) -> int:
        port = ports.choose(address, candidates)
        if port != candidates[0]:
            self.supervisor.say(
                f"port {candidates[0]} is held by {ports.holder(candidates[0])}; {what} takes port {port}"
            )
        return port

    def _migrate(self) -> None:
        began = time.monotonic()
        call_command("migrate", interactive=False, verbosity=0)
        connections.close_all()
        seconds = time.monotonic() - began
        if seconds > 2:
            self.supervisor.say(f"the database is up to date after {seconds:.1f} s")

    def _web(self, environment: dict[str, str]) -> Program:
        port = env.runtime()["web_port"]
        argv = [sys.executable, "-m", "uvicorn", "console.asgi:application"]
        argv += ["--host", env.environment().slipway_bind, "--port", str(port), "--ws", "websockets-sansio"]
        argv += ["--no-proxy-headers", "--no-server-header", "--lifespan", "off", "--log-level", "warning"]
        argv += ["--timeout-graceful-shutdown", "3"]
        return Program("web", argv, environment, ready=lambda: self._listens("web", port) and answers(local_url()))

    def _workers(self, environment: dict[str, str]) -> list[Program]:
        manage = [sys.executable, str(settings.BASE_DIR / "manage.py")]
        return [
            Program("worker", [*manage, "worker"], environment),
            Program("ingest", [*manage, "ingest"], environment),
            Program("haproxy", [*manage, "haproxy"], environment, ready=gateway_answers),
            Program("gateway", [*manage, "gateway"], environment),
        ]

    def _agent(self, environment: dict[str, str]) -> Program:
        config = local_host.register()
        connections.close_all()
        argv = [sys.executable, "-m", "workers.cli", "host", "run", "--config", str(config)]
        return Program("host", argv, environment)

    def _watch(self) -> None:
        """Have processes that run but do nothing killed, and so started again."""
        watched = [Watched("web", lambda: answers(local_url())), Watched("ingest", reports_are_read)]
        while not self.supervisor.stopping:
            time.sleep(EVERY_SECONDS)
            for one in watched:
                idle = one.look(self.supervisor.pids().get(one.name))
                if idle and not self.supervisor.stopping:
                    self.supervisor.say(f"{one.name} has done nothing for {idle:.0f} s and is started again")
                    self.supervisor.restart(one.name)

    # -- stopping -----------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Watch until Ctrl-C or SIGTERM."""
        self.supervisor.run()

    def stop(self) -> None:
        """Stop the console; engines go on serving."""
        # A second Ctrl-C must not cut the stop short and leave a part of the console behind.
        with suppress(ValueError):
            signal.signal(signal.SIGINT, signal.SIG_IGN)
        self.supervisor.say("stopping the console")
        self.supervisor.stop()
        count = len(engines.running())
        if count:
            noun = "engine goes" if count == 1 else "engines go"
            self.supervisor.say(f"stopped; {count} {noun} on serving. `make demo-down` stops all of it.")
        else:
            self.supervisor.say("stopped; no engine runs")
        os.close(self._lock)


def write_runtime(**values: Any) -> None:
    """Change what `runtime.json` says, in one step; a value of None takes the entry away."""
    path = env.runtime_file()
    draft = path.with_suffix(".new")
    known = {**env.runtime(), **values}
    draft.write_text(json.dumps({name: value for name, value in known.items() if value is not None}))
    draft.replace(path)


def child_environment() -> dict[str, str]:
    """Environment of the console's processes."""
    home = str(env.environment().slipway_home)
    return {
        **os.environ,
        "DJANGO_SETTINGS_MODULE": "console.settings",
        "PYTHONUNBUFFERED": "1",
        "SLIPWAY_HOME": home,
        MARK: home,
    }


def local_url() -> str:
    """Address of the web process on this machine."""
    return str(env.runtime()["console_url"])


def answers(url: str) -> bool:
    """True if a web server answers there without a server error; redirects and refusals are answers."""
    try:
        with urllib.request.urlopen(url + "/account/login/", timeout=EVERY_SECONDS):  # noqa: S310 - our own http URL
            return True
    except urllib.error.HTTPError as error:
        return error.code < 500
    except (OSError, ValueError):
        return False


def gateway_answers() -> bool:
    """True if the gateway's HAProxy accepts requests."""
    try:
        RuntimeApi(plan.directory()).info()
    except Away:
        return False
    return True


def console_processes() -> list[int]:
    """Processes that an `up` for this SLIPWAY_HOME has started and that still live."""
    mark = f"{MARK}={env.environment().slipway_home}".encode()
    found = []
    for directory in Path("/proc").iterdir():
        if directory.name.isdigit() and int(directory.name) != os.getpid():
            with suppress(OSError):
                if mark in (directory / "environ").read_bytes().split(b"\0"):
                    found.append(int(directory.name))
    return found


def end_leftovers(say: Callable[[str], None]) -> None:
    """Kill what an earlier `up` left behind, if anything: the kernel should have ended it together with that `up`."""
    for pid in console_processes():
        say(f"ending pid {pid}, left by an earlier run")
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def missing_migrations() -> int:
    """How many migrations of this code the database doesn't have yet."""
    executor = MigrationExecutor(connections["default"])
    return len(executor.migration_plan(executor.loader.graph.leaf_nodes()))
