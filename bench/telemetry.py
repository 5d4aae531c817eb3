"""Hundreds of engines watched at once: what that costs, how long a sample takes to the screen, and whether any gets lost.

Two hundred engines replay a real vLLM's `/metrics`; real samplers scrape them every second for 25 hosts, while fifty boards
are open. Then two thousand engines' samples, one each every five seconds, go straight into the hosts' streams.
"""

import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import quantiles
from typing import Any
from uuid import UUID

import psutil
import redis
from websockets.sync.client import ClientConnection, connect

from bench.console import Bench
from bench.replay import RECORDED, Replay
from bench.rows import Row
from tests.ports import free_port
from workers.contracts import MetricsBatch, samples_stream
from workers.host.sampling import body_of
from workers.vllm.metrics import parse_metrics
from workers.vllm.sample_messages import to_message

HOSTS, EACH = 25, 8
MANY_HOSTS, EVERY_SECONDS = 250, 5
SOCKETS = 50
CORE_TARGET = 0.5
MANY_CORE_TARGET = 1.0
AGENT_MS_TARGET = 3.0
LATENCY_TARGET_MS = 1000.0
WATCHED = ("ingest", "web", "broker")

MAKE = """
import json
from console.catalog.models import Copy, Model, Revision
from console.deployments.models import Deployment, Instance, Spec
from console.fleet.models import Engine, Host
from console.common.secrets import encrypt
from workers.sealing import generate_key_pair
revision = Revision.objects.create(model=Model.objects.create(name="{name}"), commit="local")
found = {{}}
for number in range({hosts}):
    name = f"{name}-{{number}}"
    host = Host.objects.create(name=name, public_key=generate_key_pair()[1], redis_password_sha256="0" * 64)
    engine = Engine.objects.create(host=host, key="e", distribution="vllm", version="0.32.0", platform="cuda", path="/e")
    copy = Copy.objects.create(revision=revision, host=host, path="/m", state="verified")
    deployment = Deployment.objects.create(name=name, api_key=encrypt("k"), state="serving")
    spec = Spec.objects.create(deployment=deployment, number=1, copy=copy, engine=engine, host=host)
    rows = [
        Instance.objects.create(deployment=deployment, spec=spec, host=host, number=one, port=18000 + one, state="ready")
        for one in range(1, {each} + 1)
    ]
    found[host.name] = [deployment.pk, [str(row.uuid) for row in rows]]
print(json.dumps(found))
"""

Fleet = dict[str, tuple[int, list[str]]]
"""Host -> its deployment and the UUIDs of its instances."""


def measure(bench: Bench) -> list[Row]:
    """Both, one after the other, on one console."""
    url = broker_url(bench)
    few, many = made(bench, "bench", HOSTS), made(bench, "many", MANY_HOSTS)
    return [*replayed(bench, url, few), *fed(bench, url, many)]


def made(bench: Bench, name: str, hosts: int) -> Fleet:
    """Hosts with a deployment of eight instances each."""
    code = MAKE.format(name=name, hosts=hosts, each=EACH)
    found: Fleet = json.loads(bench.console.manage("shell", "-v", "0", "-c", code).splitlines()[-1])
    return found


# -- 200 engines, scraped every second --------------------------------------------------------------------------------


def replayed(bench: Bench, url: str, fleet: Fleet) -> list[Row]:
    """Scrape the replaying engines with boards open, then ask the console what it has counted."""
    screens = [Screen(bench, deployment) for deployment, _uuids in list(fleet.values()) * (SOCKETS // HOSTS)]
    placed = {host: {uuid: free_port() for uuid in uuids} for host, (_deployment, uuids) in fleet.items()}
    began = time.time()
    with (
        replaying([port for ports in placed.values() for port in ports.values()]),
        Watch(bench) as watch,
        tempfile.TemporaryDirectory() as folder,
    ):
        file = Path(folder) / "fleet.json"
        file.write_text(json.dumps(placed))
        words = [sys.executable, "-m", "bench.hosts", str(file), url, str(bench.seconds)]
        played = json.loads(subprocess.run(words, check=True, capture_output=True, text=True).stdout)
    time.sleep(1)
    for screen in screens:
        screen.close()
    seen = played["instances"]
    taken = sum(int(one["samples"]) for one in seen.values())
    of = f"{len(seen)} engines × 1 s for {bench.seconds} s, {len(screens)} boards open"
    return [
        *watch.rows("200 engines", of, CORE_TARGET),
        Row("sample, on the host", round(1000 * played["cpu_seconds"] / taken, 2), "ms", AGENT_MS_TARGET, "lower",
            f"of a core for asking, reading and sending; {taken:,} samples of {bench.seconds * HOSTS * EACH:,} in time"),
        delay(screens, of),
        Row("samples lost", lost_samples(url, seen), "", 0, "lower", f"of {taken:,} that were sent"),
        Row("requests lost", lost_requests(bench, fleet, seen, began), "", 0, "lower",
            "finished requests that the engines counted, less what the boards' totals say"),
    ]  # fmt: skip


@contextmanager
def replaying(ports: list[int]) -> Iterator[None]:
    """The engines."""
    words = [sys.executable, "-m", "bench.replay", *map(str, ports)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout
        server.stdout.readline()
        try:
            yield
        finally:
            server.terminate()


def lost_samples(url: str, seen: dict[str, Any]) -> int:
    """Samples that are not in the rings; the first of each engine only begins the counting."""
    broker = redis.Redis.from_url(url)
    kept = sum(min(int(broker.xlen(f"console:metrics:ring:{uuid}")), int(seen[uuid]["samples"]) - 1) for uuid in seen)
    return sum(int(one["samples"]) - 1 for one in seen.values()) - kept


def lost_requests(bench: Bench, fleet: Fleet, seen: dict[str, Any], began: float) -> float:
    """What the engines counted between their first and last sample, less the totals that the boards show for that time."""
    ended = int(time.time() * 1000)
    shown = 0.0
    for deployment, _uuids in fleet.values():
        path = f"/deployments/{deployment}/metrics/series/?from={int(began * 1000)}&to={ended}"
        figures = {one["key"]: one["number"] for one in bench.console.get(path).json()["totals"]}
        shown += figures["requests"] or 0
    return round(sum(one["last"] - one["first"] for one in seen.values()) - shown, 3)


@dataclass
class Screen:
    """A board's socket, as a browser opens it, and how late the points of each second came, on which samples are taken."""

    bench: Bench
    deployment: int
    delays: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._socket = self._opened()
        threading.Thread(target=self._read, daemon=True).start()

    def _opened(self) -> ClientConnection:
        console = self.bench.console
        cookies = "; ".join(f"{name}={value}" for name, value in self.bench.cookies().items())
        url = f"{console.url.replace('http', 'ws', 1)}/ws/deployments/{self.deployment}/metrics/"
        return connect(url, additional_headers={"Cookie": cookies}, origin=console.url)

    def _read(self) -> None:
        newest = 0
        for text in self._socket:
            now = time.time()
            for point in json.loads(text).get("points", []):
                if point["t"] > newest:
                    newest = point["t"]
                    self.delays.append(now - newest / 1000)

    def close(self) -> None:
        self._socket.close()


def delay(screens: list[Screen], of: str) -> Row:
    """The tail over all points on all screens."""
    delays = [one for screen in screens for one in screen.delays]
    if len(delays) < 2:
        return Row("sample to screen", None, "ms", LATENCY_TARGET_MS, "lower", "not measured: no point arrived")
    tail = quantiles(delays, n=20)[-1] * 1000
    reference = f"p95 of {len(delays):,} points from the sample's second to the boards' sockets; {of}"
    return Row("sample to screen", round(tail), "ms", LATENCY_TARGET_MS, "lower", reference)


@dataclass
class Watch:
    """CPU and memory of the console's processes over a span."""

    bench: Bench

    def __enter__(self) -> "Watch":
        children = self.bench.console.children()
        self._processes = {name: psutil.Process(children[name]) for name in WATCHED}
        self._before = {name: spent(process) for name, process in self._processes.items()}
        self._began = time.monotonic()
        return self

    def __exit__(self, *_error: object) -> None:
        self._seconds = time.monotonic() - self._began
        self._after = {name: spent(process) for name, process in self._processes.items()}

    def rows(self, what: str, of: str, target: float) -> list[Row]:
        """Cores and memory of each; only ingest's cores are promised."""
        found = []
        for name, process in self._processes.items():
            cores = (self._after[name] - self._before[name]) / self._seconds
            limit = target if name == "ingest" else None
            found.append(Row(f"{name} of {what}", round(cores, 3), "cores", limit, "lower", of))
            memory = round(process.memory_info().rss / 2**20)
            found.append(Row(f"{name} of {what}, memory", memory, "MiB", None, "lower", of))
        return found


def spent(process: psutil.Process) -> float:
    """CPU seconds."""
    times = process.cpu_times()
    return float(times.user + times.system)


# -- 2,000 engines, fed into the streams ------------------------------------------------------------------------------


def fed(bench: Bench, url: str, fleet: Fleet) -> list[Row]:
    """Every host's batch once in five seconds, spread evenly over them."""
    broker = redis.Redis.from_url(url)
    rounds = max(4, bench.seconds // EVERY_SECONDS)
    with Watch(bench) as watch:
        for number in range(1, rounds + 1):
            feed(broker, fleet, number)
        time.sleep(2)
    left = sum(max(0, int(broker.xlen(samples_stream(host))) - 1) for host in fleet)
    uuids = [uuid for _deployment, uuids in fleet.values() for uuid in uuids]
    kept = sum(int(broker.xlen(f"console:metrics:ring:{uuid}")) for uuid in uuids)
    of = f"{len(uuids):,} engines × {EVERY_SECONDS} s for {rounds * EVERY_SECONDS} s, straight into the hosts' streams"
    lost = (rounds - 1) * len(uuids) - kept
    return [
        *watch.rows("2,000 engines", of, MANY_CORE_TARGET),
        Row("samples of 2,000 engines lost", lost, "", 0, "lower", f"of {rounds * len(uuids):,}; two seconds later"),
        Row("samples of 2,000 engines waiting", left * EACH, "", 0, "lower", "two seconds after the last was sent"),
    ]


def feed(broker: "redis.Redis", fleet: Fleet, number: int) -> None:
    """One round: the recorded load for the `number`th time, of each host at its moment within the five seconds."""
    text = body_of(Replay(RECORDED.read_text()).at(number))
    sample = parse_metrics(text, taken_at=float(number * EVERY_SECONDS))
    blank = UUID(int=0)
    told = to_message(sample, instance=blank, attempt=1).model_dump_json()
    began = time.monotonic()
    for at, (host, (_deployment, uuids)) in enumerate(fleet.items()):
        time.sleep(max(0.0, began + at * EVERY_SECONDS / len(fleet) - time.monotonic()))
        samples = ",".join(told.replace(str(blank), uuid) for uuid in uuids)
        batch = (
            MetricsBatch.model_construct(samples=[]).model_dump_json().replace('"samples":[]', f'"samples":[{samples}]')
        )
        broker.xadd(samples_stream(host), {"json": batch}, maxlen=1000, approximate=True)
    time.sleep(max(0.0, began + EVERY_SECONDS - time.monotonic()))


def broker_url(bench: Bench) -> str:
    """The console's own address of its broker."""
    code = "from django.conf import settings; print(settings.REDIS_URL)"
    return bench.console.manage("shell", "-v", "0", "-c", code).splitlines()[-1]
