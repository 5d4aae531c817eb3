"""How steps and launches say why they cannot go on."""

from typing import Any, Self

from workers.contracts import Failure


class StepFailedError(Exception):
    """A step, or a start, ends here. The message says what and how much; `next_step` the next thing to do."""

    def __init__(
        self, code: str, message: str, *, next_step: str = "", evidence: list[dict[str, Any]] | None = None
    ) -> None:
        super().__init__(message)
        self.result: dict[str, Any] = {}
        """What the step found before it failed, in the form of its result; empty if it has nothing to show."""
        self.failure = Failure(code=code, message=message, next=next_step, evidence=evidence or [])

    @classmethod
    def of(cls, failure: Failure) -> Self:
        """The exception that carries an existing failure."""
        return cls(failure.code, failure.message, next_step=failure.next, evidence=failure.evidence)


class StepCancelledError(Exception):
    """Someone asked for this step to be abandoned."""
