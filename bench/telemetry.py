"""Two hundred engines sampled every second: what ingest needs of a core, and how long a sample takes to a browser's socket."""

import json
import threading
import time
from statistics import quantiles
from uuid import UUID

import psutil
import redis
from websockets.sync.client import ClientConnection, connect

from bench.console import Bench
from bench.rows import Row
from tests.telemetry.samples import FakeLoad
from workers.contracts import MetricsBatch, samples_stream
from workers.vllm.sample_messages import to_message

HOSTS, EACH = 25, 8
SECONDS = 45
SOCKETS = 50
CORE_TARGET = 0.5
LATENCY_TARGET_MS = 1000.0

MAKE = """
import json
from console.catalog.models import Copy, Model, Revision
from console.deployments.models import Deployment, Instance, Spec
from console.fleet.models import Engine, Host
from console.common.secrets import encrypt
from workers.sealing import generate_key_pair
revision = Revision.objects.create(model=Model.objects.create(name="bench"), commit="local")
found = {{}}
for number in range({hosts}):
    host = Host.objects.create(name=f"bench-{{number}}", public_key=generate_key_pair()[1], redis_password_sha256="0" * 64)
    engine = Engine.objects.create(host=host, key="e", distribution="vllm", version="0.32.0", platform="cuda", path="/e")
    copy = Copy.objects.create(revision=revision, host=host, path="/m", state="verified")
    deployment = Deployment.objects.create(name=f"bench-{{number}}", api_key=encrypt("k"), state="serving")
    spec = Spec.objects.create(deployment=deployment, number=1, copy=copy, engine=engine, host=host)
    rows = [
        Instance.objects.create(deployment=deployment, spec=spec, host=host, number=one, port=18000 + one, state="ready")
        for one in range(1, {each} + 1)
    ]
    found[host.name] = [deployment.pk, [str(row.uuid) for row in rows]]
print(json.dumps(found))
"""


def measure(bench: Bench) -> list[Row]:
    """Play the hosts for a while, with open boards, and watch ingest."""
    code = MAKE.format(hosts=HOSTS, each=EACH)
    fleet = json.loads(bench.console.manage("shell", "-v", "0", "-c", code).splitlines()[-1])
    url = broker_url(bench)
    first = next(iter(fleet.values()))[0]
    delays: list[float] = []
    sockets = [opened(bench, first) for _ in range(SOCKETS)]
    readers = [threading.Thread(target=read, args=(socket, delays), daemon=True) for socket in sockets]
    for reader in readers:
        reader.start()
    ingest = psutil.Process(bench.console.children()["ingest"])
    time.sleep(3)
    before, began = ingest.cpu_times(), time.monotonic()
    play(redis.Redis.from_url(url), fleet)
    after, seconds = ingest.cpu_times(), time.monotonic() - began
    for socket in sockets:
        socket.close()
    core = (after.user + after.system - before.user - before.system) / seconds
    count = HOSTS * EACH
    reference = f"{count} engines × 1 s for {seconds:.0f} s, rings, roll-ups and current numbers included"
    rows = [Row("ingest of 200 engines", round(core, 3), "cores", CORE_TARGET, "lower", reference)]
    rows.append(Row("ingest memory", round(ingest.memory_info().rss / 2**20), "MiB", None, "lower", reference))
    if delays:
        tail = quantiles(delays, n=20)[-1] * 1000
        reference = f"p95 of {len(delays)} points from a sample's second to {SOCKETS} open boards' sockets"
        rows.append(Row("sample to screen", round(tail), "ms", LATENCY_TARGET_MS, "lower", reference))
    else:
        rows.append(Row("sample to screen", None, "ms", LATENCY_TARGET_MS, "lower", "not measured: no point arrived"))
    return rows


def broker_url(bench: Bench) -> str:
    """The console's own address of its broker."""
    code = "from django.conf import settings; print(settings.REDIS_URL)"
    return bench.console.manage("shell", "-v", "0", "-c", code).splitlines()[-1]


def opened(bench: Bench, deployment: int) -> ClientConnection:
    """A board's socket, as a browser opens it."""
    cookies = "; ".join(f"{name}={value}" for name, value in bench.cookies().items())
    url = f"{bench.console.url.replace('http', 'ws', 1)}/ws/deployments/{deployment}/metrics/"
    return connect(url, additional_headers={"Cookie": cookies}, origin=bench.console.url)


def read(socket: ClientConnection, delays: list[float]) -> None:
    """Note how late each new second's point is; samples are sent on full seconds."""
    newest = 0
    for text in socket:
        now = time.time()
        for point in json.loads(text).get("points", []):
            if point["t"] > newest:
                newest = point["t"]
                delays.append(now - newest / 1000)


def play(broker: "redis.Redis", fleet: dict[str, tuple[int, list[str]]]) -> None:
    """Every host sends a batch on each full second, as agents do."""
    loads = {uuid: FakeLoad() for _deployment, uuids in fleet.values() for uuid in uuids}
    for _ in range(SECONDS):
        batches = {}
        for host, (_deployment, uuids) in fleet.items():
            samples = []
            for uuid in uuids:
                loads[uuid].answer(3, tokens=40)
                samples.append(to_message(loads[uuid].sample(time.monotonic()), instance=UUID(uuid), attempt=1))
            batches[host] = MetricsBatch.model_construct(samples=samples).model_dump_json()
        time.sleep(1 - time.time() % 1)
        for host, text in batches.items():
            broker.xadd(samples_stream(host), {"json": text}, maxlen=1000, approximate=True)
