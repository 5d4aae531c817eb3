from typing import Any

from django.core.exceptions import ValidationError
from django.core.management.base import BaseCommand, CommandError, CommandParser

from console.access import services as access
from console.access.models import Role
from console.common.errors import Refused


class Command(BaseCommand):
    help = "Add a person and print their first password, which they change at their first sign-in."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("username", help="Name under which the person signs in.")
        parser.add_argument("--role", choices=Role.values, default=Role.ADMIN, help="Default: admin.")

    def handle(self, *_args: Any, username: str, role: str, **_options: Any) -> None:
        try:
            person, password = access.add_person(username=username, role=role, actor=None)
        except Refused as refusal:
            raise CommandError(refusal.message) from None
        except ValidationError as error:
            raise CommandError(" ".join(error.messages)) from None
        self.stdout.write(f"{person.username} ({role}): {password}")
