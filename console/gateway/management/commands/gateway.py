import signal
from types import FrameType
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from console.gateway.controller import Controller
from workers.gateway.program import NoHAProxy


class Command(BaseCommand):
    help = "Keep the gateway's HAProxy at what the database says, and store what went through it."

    def handle(self, *_args: Any, **_options: Any) -> None:
        try:
            controller = Controller()
        except NoHAProxy as problem:
            raise CommandError(str(problem)) from None

        def stop(_number: int, _frame: FrameType | None) -> None:
            controller.stopping = True

        signal.signal(signal.SIGTERM, stop)
        signal.signal(signal.SIGINT, stop)
        controller.run()
