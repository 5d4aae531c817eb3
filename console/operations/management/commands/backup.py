from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from console.operations.backup import back_up


class Command(BaseCommand):
    help = "Write the database, the stored logs and, with --with-secrets, the keys into one file."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("file", type=Path, help="The file to write, such as slipway.tar.gz.")
        parser.add_argument(
            "--with-secrets",
            action="store_true",
            help="Put the keys in, too: whoever has the file can read everything.",
        )

    def handle(self, *_args: Any, file: Path, with_secrets: bool, **_options: Any) -> None:
        target = file.expanduser().absolute()
        if not target.parent.is_dir():
            raise CommandError(f"{target.parent} is not a folder. Make it first, or choose another one.")
        back_up(target, with_secrets=with_secrets, say=self.stdout.write)
