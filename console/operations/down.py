"""Taking the whole demo down: engines, then the console, then whatever should not be there any more."""

import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress

from django.db import DatabaseError

from console.common.errors import Refused
from console.deployments import services as deployments
from console.deployments.models import Deployment
from console.jobs.models import Job
from console.operations import engines, up
from console.operations.following import Interrupted, JobFailed, follow
from console.operations.local_host import NAME

STOP_JOBS_SECONDS = 120
CONSOLE_SECONDS = 60
REASON = "make demo-down"


def take_down(say: Callable[[str], None]) -> bool:
    """Stop everything of this SLIPWAY_HOME on this machine; returns False if something could not be stopped."""
    running = up.running()
    if running:
        try:
            _stop_deployments(say)
        except DatabaseError as error:
            # Of another version, say. The engines are stopped all the same, only without a word in the ledger.
            say(f"the ledger can't be used ({error})")
        _stop_console(running, say)
    else:
        say("no console runs")
    if left := engines.running():
        say(f"stopping {len(left)} engines through their shims")
    stuck = engines.stop_all()
    up.end_leftovers(say)
    for directory in stuck:
        say(f"an engine could not be stopped; its files are in {directory}")
    if not stuck:
        say("stopped. Nothing runs any more; engines, models and data stay in SLIPWAY_HOME for the next `make demo`.")
    return not stuck


def _stop_deployments(say: Callable[[str], None]) -> None:
    """Through stop jobs, so that the ledger knows; what they don't manage is stopped through the shims afterwards."""
    until = time.monotonic() + STOP_JOBS_SECONDS
    asked: list[Job] = []
    for deployment in Deployment.objects.filter(instances__ordered=True, instances__host__name=NAME).distinct():
        try:
            asked.append(deployments.stop(deployment, actor=None, reason=REASON))
        except Refused as refusal:
            say(refusal.message)
    for job in asked:
        try:
            follow(job, say=say, alive=lambda: time.monotonic() < until)
        except (JobFailed, Interrupted) as problem:
            say(f"{job}: {str(problem) or f'not done after {STOP_JOBS_SECONDS} s'}")


def _stop_console(running: up.Running, say: Callable[[str], None]) -> None:
    say(f"stopping the console (pid {running.pid})")
    began = time.monotonic()
    with suppress(ProcessLookupError):
        os.kill(running.pid, signal.SIGTERM)
    while up.running() and time.monotonic() - began < CONSOLE_SECONDS:
        time.sleep(0.1)
    if up.running():
        say(f"it did not stop within {CONSOLE_SECONDS} s and is killed")
        with suppress(ProcessLookupError):
            os.kill(running.pid, signal.SIGKILL)
