import threading
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.db import DatabaseError, connections

from console.common.errors import Refused
from console.operations import up
from console.operations.demo import Demo, DemoFailed
from console.operations.embedded_broker import NoBroker
from console.operations.following import Interrupted, JobFailed
from console.operations.supervisor import StartFailed, write_line

EXPECTED = (StartFailed, NoBroker, DemoFailed, JobFailed, Refused, DatabaseError, OSError)


class Command(BaseCommand):
    help = "Bring up the console and a real small model on this machine, and show that it answers."
    requires_system_checks = []

    def handle(self, *_args: Any, **_options: Any) -> None:
        try:
            console = up.Console()
        except up.AlreadyRunning as already:
            self._beside(already.running)
            return
        failures: list[str] = []
        try:
            console.start()
            thread = threading.Thread(target=self._in_thread, args=(console, failures), name="demo", daemon=True)
            thread.start()
            console.run()
        except EXPECTED as error:
            failures.append(str(error))
        finally:
            console.stop()
        if failures:
            raise CommandError(failures[0])

    def _beside(self, running: up.Running) -> None:
        """The console runs in another terminal: only look whether everything is there, or bring it about."""
        write_line(f"The console is already running at {running.url} (pid {running.pid}).")
        if missing := up.missing_migrations():
            raise CommandError(
                f"It runs an older version: {missing} changes of the database are not applied. Stop it (Ctrl-C there, or "
                "`make demo-down`), then run `make demo` again."
            )
        try:
            ready = Demo(say=write_line, alive=lambda: up.running() is not None).run()
        except Interrupted:
            raise CommandError("The console was stopped meanwhile. Run `make demo` again.") from None
        except EXPECTED as error:
            raise CommandError(str(error)) from None
        write_line(ready.line())

    def _in_thread(self, console: up.Console, failures: list[str]) -> None:
        supervisor = console.supervisor
        try:
            ready = Demo(
                say=lambda text: supervisor.say(text, name="demo"), alive=lambda: not supervisor.stopping
            ).run()
            write_line(ready.line())
            supervisor.say("Ctrl-C stops the console and leaves the engine serving; `make demo-down` stops all of it.")
        except Interrupted:
            pass
        except EXPECTED as error:
            failures.append(str(error))
            supervisor.ask_to_stop()
        except Exception as error:
            failures.append(f"{type(error).__name__}: {error}")
            supervisor.ask_to_stop()
            raise
        finally:
            connections.close_all()
