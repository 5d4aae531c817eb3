import sys
from typing import Any

from django.core.management.base import BaseCommand

from console.operations.down import take_down
from console.operations.supervisor import write_line


class Command(BaseCommand):
    help = "Stop the console and all engines that it started on this machine."
    requires_system_checks = []

    def handle(self, *_args: Any, **_options: Any) -> None:
        if not take_down(write_line):
            sys.exit(1)
