from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from console.operations.restore import RestoreRefused, restore


class Command(BaseCommand):
    help = "Put a backup into an empty database, or with --force in place of everything."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("file", type=Path, help="The file that `manage.py backup` wrote.")
        parser.add_argument("--force", action="store_true", help="Replace what the database holds now.")

    def handle(self, *_args: Any, file: Path, force: bool, **_options: Any) -> None:
        try:
            restore(file.expanduser().absolute(), force=force, say=self.stdout.write)
        except RestoreRefused as refusal:
            raise CommandError(str(refusal)) from None
