import signal
from typing import Any

from django.core.management.base import BaseCommand

from console.telemetry.ingest import Ingest


class Command(BaseCommand):
    help = "Read what hosts report and store it, until stopped."

    def handle(self, *_args: Any, **_options: Any) -> None:
        ingest = Ingest()

        def stop(*_signal: object) -> None:
            ingest.stopping = True

        signal.signal(signal.SIGTERM, stop)
        signal.signal(signal.SIGINT, stop)
        ingest.run()
