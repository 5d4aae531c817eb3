import os
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.db import DatabaseError

from console import env
from console.gateway import plan
from workers.gateway import program
from workers.gateway.applying import Applier


class Command(BaseCommand):
    help = "Write the gateway's configuration and become its HAProxy."
    requires_system_checks = []

    def handle(self, *_args: Any, **_options: Any) -> None:
        directory = plan.directory()
        try:
            binary = program.find(env.environment().slipway_haproxy)
            problem = Applier(directory, binary).prepare(plan.read())
        except program.NoHAProxy as missing:
            raise CommandError(str(missing)) from None
        except DatabaseError as error:
            problem = f"the database does not answer: {error}"
        if problem:
            if not (directory / program.CONFIG).exists():
                raise CommandError(problem)
            self.stderr.write(f"the last good configuration is used: {problem}")
        log = os.open(directory / program.ACCESS_LOG, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        program.hand_down(log, plan.listener().log_descriptors)
        argv = program.command(binary, directory)
        os.execve(binary, argv, program.environment())  # noqa: S606 - a path and an argv of our own
