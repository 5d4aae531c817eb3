"""How quickly pages answer with 10,000 jobs in the ledger, and with 1,000 hosts of 8 GPUs."""

import time
from statistics import median

from bench.console import Bench
from bench.rows import Row

JOBS = 10_000
HOSTS = 1_000
GPUS = 8
TIMES = 15
TARGET_MS = 100.0
PAGES = (
    "/",
    "/jobs/",
    "/jobs/?before=5000",
    "/jobs/?state=failed",
    "/deployments/",
    "/models/",
    "/hosts/",
    "/engines/",
    "/audit/",
)

FILL = """
from console.jobs.models import Event, Job, Step
from console.fleet.models import Host
host = Host.objects.get(name="local")
count = {count}
states = ["succeeded", "failed", "cancelled"]
jobs = Job.objects.bulk_create(
    (Job(kind="deploy", title=f"Deploy bench-{{n}}", state=states[n % 3], last_event=4) for n in range(count)),
    batch_size=1000)
Step.objects.bulk_create(
    (Step(job=job, position=p, kind=kind, host=host, state=job.state, deadline_seconds=60)
     for job in jobs for p, kind in enumerate(("preflight", "verify", "launch"), start=1)), batch_size=1000)
Event.objects.bulk_create(
    (Event(job=job, seq=seq, text=f"event {{seq}}") for job in jobs for seq in range(1, 5)), batch_size=2000)
print(jobs[-1].pk)
"""

FILL_HOSTS = """
from django.utils import timezone
from console.fleet import devices
from console.fleet.models import Device, Host
gib = 2**30
gpus = [dict(index=n, uuid=f"GPU-{{n}}", name="NVIDIA H100 80GB HBM3", capability="9.0", memory_total=80 * gib,
             memory_free=70 * gib, memory_used=10 * gib, utilization=0.5, power_watts=300.0, temperature_c=50,
             processes=[dict(pid=n, name="python train.py", memory=9 * gib)]) for n in range({gpus})]
live = dict(gpus=dict(source="nvml", driver="570.124.06", gpus=gpus))
hosts = []
for number in range({hosts}):
    host = Host(name=f"bench-{{number:04}}", public_key="x", last_seen_at=timezone.now(), agent_version="1")
    devices.note_vitals(host, dict(memory_total=512 * gib, memory_available=400 * gib, live=live))
    hosts.append(host)
Host.objects.bulk_create(hosts, batch_size=200)
Device.objects.bulk_create(
    (Device(host=host, kind="gpu", index=n, uuid=f"GPU-{{n}}", name="NVIDIA H100 80GB HBM3", memory_total=80 * gib,
            memory_free=70 * gib) for host in hosts for n in range({gpus})), batch_size=1000)
"""
HOST_PAGES = ("/hosts/", "/hosts/?sort=-memory_free", "/hosts/?q=h100", "/hosts/?devices=gpu&page=10", "/engines/", "/")


def measure(bench: Bench) -> list[Row]:
    """Fill the ledger, then ask for each page."""
    job = bench.console.manage("shell", "-v", "0", "-c", FILL.format(count=JOBS)).strip()
    times = {page: seconds(bench, page) for page in (*PAGES, f"/jobs/{job}/")}
    slowest = max(times, key=lambda page: times[page])
    each = ", ".join(f"{page} {value:.0f}" for page, value in times.items())
    reference = f"the slowest page is {slowest}; medians of {TIMES}, one person, {JOBS:,} jobs, in ms: {each}"
    jobs = Row("page with 10,000 jobs", round(times[slowest], 1), "ms", TARGET_MS, "lower", reference)
    return [jobs, hosts_page(bench)]


def hosts_page(bench: Bench) -> Row:
    """Fill the fleet, then ask for the inventory in several ways; the overview, which shows hosts, is told beside it."""
    bench.console.manage("shell", "-v", "0", "-c", FILL_HOSTS.format(hosts=HOSTS, gpus=GPUS))
    times = {page: seconds(bench, page) for page in HOST_PAGES}
    slowest = max((page for page in times if page != "/"), key=lambda page: times[page])
    each = ", ".join(f"{page} {value:.0f}" for page, value in times.items())
    name = f"inventory of {HOSTS:,} hosts × {GPUS} GPUs"
    reference = f"the slowest is {slowest}; medians of {TIMES}, one person, in ms: {each}"
    return Row(name, round(times[slowest], 1), "ms", TARGET_MS, "lower", reference)


def seconds(bench: Bench, page: str) -> float:
    """Median time of a page, in ms; the first two answers warm caches and are not counted."""
    taken = []
    for _number in range(TIMES + 2):
        began = time.monotonic()
        answer = bench.console.get(page)
        taken.append((time.monotonic() - began) * 1000)
        assert answer.status_code == 200, f"{page}: {answer.status_code}"
    return median(taken[2:])
