import os
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from console import env
from console.operations.embedded_broker import NoBroker
from console.operations.supervisor import StartFailed
from console.operations.up import AlreadyRunning, Console


class Command(BaseCommand):
    help = "Start and watch all processes of the console on this machine."
    requires_system_checks = []

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--no-host", action="store_true", help="Don't make this machine a host.")
        parser.add_argument(
            "--hosts",
            metavar="ADDRESS",
            help="Let other machines join, by TLS: the address or name of this machine for them (SLIPWAY_HOSTS_ADDRESS).",
        )

    def handle(self, *_args: Any, no_host: bool, hosts: str | None, **_options: Any) -> None:
        if hosts:
            os.environ["SLIPWAY_HOSTS_ADDRESS"] = hosts
            env.environment.cache_clear()
            env.environment()
        try:
            console = Console(with_host=not no_host)
        except AlreadyRunning as error:
            raise CommandError(f"The console is {error}.") from None
        try:
            console.start()
            console.run()
        except (StartFailed, NoBroker, OSError) as error:
            raise CommandError(str(error)) from None
        finally:
            console.stop()
