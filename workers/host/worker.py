"""The agent's Celery worker: a child process that takes steps from the host's queue. Run by the agent only.

It dies with the agent, however that ends, and its pool processes die with it; a step that was cut off is dispatched
again by the console and resumes.
"""

import argparse
import importlib
import importlib.util
import logging
import os
import signal
import warnings
from pathlib import Path
from typing import Any

from celery import signals
from celery.exceptions import SecurityWarning
from pydantic import ValidationError

from workers.app import host_app
from workers.contracts import CONTRACT, RUN_STEP, Failure, StepFinished, StepKind, StepOrder, StepProgress, host_queue
from workers.host.logging_setup import set_up_logging
from workers.host.outbox import Outbox
from workers.host.processes import die_with_parent
from workers.host.slots import WORKER_PROCESSES, run_in_slot
from workers.host.step_runner import answer_without_running, run_order
from workers.host_config import HostConfig

logger = logging.getLogger(__name__)


class StepWorker:
    """What one pool process has: the configuration, and its own connection to the outbox."""

    def __init__(self, config: HostConfig) -> None:
        self._config = config
        self._outbox: tuple[int, Outbox] | None = None

    def handle(self, raw: dict[str, Any]) -> None:
        """Do what one message from the queue asks for."""
        try:
            order = StepOrder.model_validate(raw)
        except ValidationError:
            self._refuse(raw)
            return
        report = self._own_outbox().add
        if order.contract > CONTRACT:
            failure = Failure(
                code="host.upgrade_needed",
                message=f"the order speaks contract {order.contract}, this host's agent {CONTRACT}",
                next="Upgrade Slipway on this host, then retry.",
            )
            report(StepFinished(step=order.step, fence=order.fence, outcome="failed", failure=failure))
        elif not answer_without_running(order, self._config, report):
            ran = run_in_slot(order, self._config.state_dir, lambda found: run_order(found, self._config, report))
            if not ran:
                report(StepProgress(step=order.step, fence=order.fence, done=0, waiting_for="a free slot on the host"))

    def _refuse(self, raw: dict[str, Any]) -> None:
        logger.error("an order is not understood and was dropped: step %s", raw.get("step"))
        step, fence = raw.get("step"), raw.get("fence")
        if isinstance(step, int) and isinstance(fence, int):
            failure = Failure(
                code="host.upgrade_needed",
                message="this host's agent does not understand the order for this step",
                next="Upgrade Slipway on this host, then retry.",
            )
            self._own_outbox().add(StepFinished(step=step, fence=fence, outcome="failed", failure=failure))

    def _own_outbox(self) -> Outbox:
        # A connection to SQLite must not be carried over a fork: each pool process opens its own.
        if self._outbox is None or self._outbox[0] != os.getpid():
            self._outbox = (os.getpid(), Outbox(self._config.state_dir / "outbox.sqlite3"))
        return self._outbox[1]


def main() -> None:
    """Serve the host's queue until the agent ends."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--parent", type=int, required=True)
    options = parser.parse_args()
    die_with_parent(options.parent)
    # Started beside a console, the variable may be set; Celery would then load all of Django into this process.
    os.environ.pop("DJANGO_SETTINGS_MODULE", None)
    set_up_logging("worker")
    # Whoever runs the agent as root was told so when it was set up; JSON is the only content that is accepted.
    warnings.filterwarnings("ignore", category=SecurityWarning)
    config = HostConfig.load(options.config)
    app = host_app(config.name, config.redis_url, config.broker_ca)
    step_worker = StepWorker(config)
    app.task(name=RUN_STEP)(step_worker.handle)
    _load_steps()
    signals.setup_logging.connect(_keep_logging, weak=False)
    signals.worker_process_init.connect(_begin_pool_process, weak=False)
    app.worker_main(
        [
            "--quiet",
            "worker",
            f"--queues={host_queue(config.name)}",
            f"--concurrency={WORKER_PROCESSES}",
            f"--hostname=host-{config.name}@%h",
            "--pool=prefork",
            "--without-gossip",
            "--without-mingle",
            "--without-heartbeat",
            "--loglevel=WARNING",
        ]
    )


def _load_steps() -> None:
    """Import all steps once, before the pool is forked: its processes share the memory and answer at once."""
    for kind in StepKind:
        if importlib.util.find_spec(name := f"workers.host.steps.{kind}") is not None:
            importlib.import_module(name)


def _keep_logging(**_signal: object) -> None:
    """Connected to Celery's signal, so that it leaves logging alone."""


def _begin_pool_process(**_signal: object) -> None:
    die_with_parent(os.getppid())
    # Ctrl-C in a terminal is for the agent, which ends its worker in order.
    signal.signal(signal.SIGINT, signal.SIG_IGN)


if __name__ == "__main__":
    main()
