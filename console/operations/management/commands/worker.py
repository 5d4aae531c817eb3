import os
import warnings
from typing import Any

from celery.exceptions import SecurityWarning
from celery.signals import beat_embedded_init
from django.core.management.base import BaseCommand, CommandParser

from console.operations.child import end_with_parent


class Command(BaseCommand):
    help = "Run the console's Celery worker (queue `console`) with the beat inside."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--concurrency", type=int, default=4, help="Tasks at the same time (default: 4).")
        parser.add_argument("--no-beat", action="store_true", help="Without the beat: for a second worker.")

    def handle(self, *_args: Any, concurrency: int, no_beat: bool, **_options: Any) -> None:
        from console.celery import app

        worker = os.getpid()

        def tie(**_arguments: Any) -> None:
            # The beat is a process of its own. A worker that was killed must not leave it behind: two would beat then.
            end_with_parent(worker)

        beat_embedded_init.connect(tie, weak=False)
        argv = ["--quiet", "worker", "--queues", "console", "--pool", "threads", "--concurrency", str(concurrency)]
        argv += ["--without-gossip", "--without-mingle", "--loglevel", "WARNING"]
        # Celery warns of root at every start. Which user runs the console is the installation's choice (docs/operations.md).
        warnings.filterwarnings("ignore", category=SecurityWarning)
        app.worker_main(argv if no_beat else [*argv, "--beat"])
