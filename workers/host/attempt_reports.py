"""Telling the console about the attempts of one instance: starts, validations and ends, once each and in order."""

import asyncio
from collections.abc import Callable

from workers.contracts import (
    AttemptEnded,
    AttemptMeasured,
    AttemptStarted,
    Body,
    Failure,
    InstanceChecked,
    InstanceOrder,
)
from workers.host.exits import diagnose_attempt, explain, explain_exit, with_known_cause
from workers.host.failures import StepFailedError
from workers.host.files import read_json, write_json
from workers.host.instance_files import Attempt, InstanceFiles, ShimState
from workers.host.inventory.masking import masked
from workers.host.launching import open_secrets
from workers.host.logs import LogSender
from workers.host.secret_masking import mask_values

_SHORTEST_SECRET = 8


class AttemptReports:
    """What was told lies in the attempts' directories, so an agent that was killed tells nothing twice."""

    def __init__(
        self, files: InstanceFiles, report: Callable[[Body], object], logs: LogSender, private_keys: tuple[str, ...]
    ) -> None:
        self._files = files
        self._report = report
        self._logs = logs
        self._private_keys = private_keys
        self._ending: asyncio.Task[None] | None = None
        self._next_attempt: int | None = None
        self._told_at: int | None = None
        """The state's time up to which attempts were told; the shim writes the state after each change of one."""
        self._validation_told: tuple[int, int] | None = None
        self._measurement_told: int | None = None
        self._causes: dict[int, Failure] = {}

    @property
    def busy(self) -> bool:
        """True while a thread reads a log to find a cause."""
        return self._ending is not None and not self._ending.done()

    def tell(self, changed_at: int) -> None:
        """Report every attempt's start and end once, in order, whoever was watching when they happened."""
        if self.busy or self._told_at == changed_at:
            return
        number = self._next_attempt if self._next_attempt is not None else self._first_unreported()
        while (attempt := self._files.attempt(number)) is not None:
            directory = self._files.attempt_directory(number)
            reported = read_json(directory / "reported.json") or {}
            self._logs.follow(self._files, number, self._secrets())
            if not reported.get("started"):
                self._report(self._started(attempt))
                write_json(directory / "reported.json", {"started": True})
            if attempt.ended_at is None:
                break
            self._logs.ended(self._files.instance, number)
            if not reported.get("ended"):
                self._next_attempt = number
                self._ending = asyncio.create_task(self._tell_end(attempt))
                return
            number += 1
        self._next_attempt, self._told_at = number, changed_at

    def tell_validation(self, state: ShimState | None, order: InstanceOrder | None) -> None:
        """Report the validation of the running attempt when there is a newer one than was reported."""
        report = self._files.validation(state.attempt) if state is not None else None
        if state is None or order is None or report is None or self._validation_told == (state.attempt, report["run"]):
            return
        told = self._files.attempt_directory(state.attempt) / "validation-told.json"
        if (read_json(told) or {}).get("run") != report["run"]:  # else an agent before this one has told it
            # Answers stay as they are, since others are compared with them; warnings are lines of the log.
            fields = {name: report[name] for name in ("sound", "checks", "golden")}
            fields["warnings"] = mask_values(report["warnings"])
            self._report(
                InstanceChecked.model_validate(
                    {"instance": self._files.instance, "attempt": state.attempt, "engine": order.engine, **fields}
                )
            )
            write_json(told, {"run": report["run"]})
        self._validation_told = (state.attempt, report["run"])

    def tell_measurement(self, state: ShimState | None) -> None:
        """Report once what the running attempt needed, when it has warmed up."""
        if state is None or state.attempt == self._measurement_told:
            return
        facts = self._files.measurement(state.attempt)
        if facts is None:
            return
        self._measurement_told = state.attempt
        told = self._files.attempt_directory(state.attempt) / "measured-told.json"
        if read_json(told) is None:
            self._report(AttemptMeasured(instance=self._files.instance, number=state.attempt, facts=facts))
            write_json(told, {"told": True})

    def cause(self, number: int) -> Failure | None:
        """Why an attempt ended; `None` while a thread reads its log to find out."""
        if number not in self._causes and not self.busy:
            attempt = self._files.attempt(number)
            if attempt is None:
                return Failure(code="engine.exited", message="the engine ended, and its record is gone")
            self._ending = asyncio.create_task(self._find_cause(attempt))
        return self._causes.get(number)

    async def _find_cause(self, attempt: Attempt) -> None:
        self._causes[attempt.number] = await asyncio.to_thread(explain_exit, self._files, attempt)

    def _first_unreported(self) -> int:
        for number in self._files.attempt_numbers():
            directory = self._files.attempt_directory(number)
            if not (read_json(directory / "reported.json") or {}).get("ended"):
                return number
            if not (directory / "log-sent").exists():
                self._logs.follow(self._files, number, self._secrets())
                self._logs.ended(self._files.instance, number)
        return max(self._files.attempt_numbers(), default=0) + 1

    def _started(self, attempt: Attempt) -> AttemptStarted:
        return AttemptStarted(
            instance=self._files.instance,
            number=attempt.number,
            pid=attempt.pid,
            argv=masked(attempt.argv),
            environment=attempt.environment,
            started_at=attempt.started_at,
        )

    async def _tell_end(self, attempt: Attempt) -> None:
        diagnosis = await asyncio.to_thread(diagnose_attempt, self._files, attempt)
        self._causes[attempt.number] = explain(attempt, diagnosis, self._files)
        self._report(
            AttemptEnded(
                instance=self._files.instance,
                number=attempt.number,
                exit_code=attempt.exit_code,
                asked=attempt.asked,
                ended_at=attempt.ended_at or 0.0,
                log_bytes=attempt.log_bytes,
                diagnosis={}
                if attempt.asked and diagnosis.is_healthy
                else with_known_cause(attempt, diagnosis).as_dict(),
            )
        )
        write_json(self._files.attempt_directory(attempt.number) / "reported.json", {"started": True, "ended": True})

    def _secrets(self) -> list[bytes]:
        order = self._files.order()
        try:
            opened = open_secrets(order, self._private_keys) if order else {}
        except StepFailedError:
            return []
        return [secret.encode() for secret in opened.values() if len(secret) >= _SHORTEST_SECRET]
