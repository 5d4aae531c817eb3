from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from console.common.errors import Refused
from console.operations import local_host


class Command(BaseCommand):
    help = "Register a host whose agent shares this SLIPWAY_HOME, and write its configuration. Safe to repeat."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("name", nargs="?", default=local_host.NAME, help="Name of the host (default: local).")

    def handle(self, *_args: Any, name: str, **_options: Any) -> None:
        try:
            path = local_host.register(name)
        except Refused as refusal:
            raise CommandError(refusal.message) from None
        self.stdout.write(f"Host {name} is registered. Start its agent: slipway host run --config {path}")
