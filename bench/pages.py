"""How quickly pages answer with 10,000 jobs in the ledger."""

import time
from statistics import median

from bench.console import Bench
from bench.rows import Row

JOBS = 10_000
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


def measure(bench: Bench) -> list[Row]:
    """Fill the ledger, then ask for each page."""
    job = bench.console.manage("shell", "-v", "0", "-c", FILL.format(count=JOBS)).strip()
    times = {page: seconds(bench, page) for page in (*PAGES, f"/jobs/{job}/")}
    slowest = max(times, key=lambda page: times[page])
    each = ", ".join(f"{page} {value:.0f}" for page, value in times.items())
    reference = f"the slowest page is {slowest}; medians of {TIMES}, one person, {JOBS:,} jobs, in ms: {each}"
    return [Row("page with 10,000 jobs", round(times[slowest], 1), "ms", TARGET_MS, "lower", reference)]


def seconds(bench: Bench, page: str) -> float:
    """Median time of a page, in ms; the first two answers warm caches and are not counted."""
    taken = []
    for _number in range(TIMES + 2):
        began = time.monotonic()
        answer = bench.console.get(page)
        taken.append((time.monotonic() - began) * 1000)
        assert answer.status_code == 200, f"{page}: {answer.status_code}"
    return median(taken[2:])
