"""Running one step: fences, lock, cancellation, deadline, outcome. The steps themselves know nothing of it.

The rules, for a dispatch with number F of a step whose newest known dispatch is K:

- F < K: refused without an answer; the console has asked again since.
- The step is cancelled up to F or beyond: refused, answered `cancelled`.
- It runs here: answered `still running`; it goes on, and its reports carry the newer number.
- It has succeeded for the same payload, or ended in any way at this very dispatch: the stored answer, once more.
- Otherwise it runs. Steps are idempotent, so one that died half-way with its process is simply run again.
"""

import importlib
import importlib.util
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from pydantic import ValidationError

from workers.contracts import Body, Failure, StepFinished, StepOrder, StepStarted, StepStillRunning
from workers.host.failures import StepCancelledError, StepFailedError
from workers.host.step_context import StepContext
from workers.host.step_files import StepFiles
from workers.host_config import HostConfig

logger = logging.getLogger(__name__)

Report = Callable[[Body], object]

_LOCK_PAUSE_SECONDS = 0.01


def answer_without_running(order: StepOrder, config: HostConfig, report: Report) -> bool:
    """Answer a dispatch that needs no (further) run, by the rules above; False if the step has to be run."""
    files = StepFiles(config.state_dir, order.step)
    with _taken_to_run(order, files, report) as taken:
        return not taken


def run_order(order: StepOrder, config: HostConfig, report: Report) -> None:
    """Do what a dispatch asks for, by the rules above. Never raises because of the step."""
    files = StepFiles(config.state_dir, order.step)
    with _taken_to_run(order, files, report) as taken:
        if taken:
            _run(order, config, files, report)


@contextmanager
def _taken_to_run(order: StepOrder, files: StepFiles, report: Report) -> Iterator[bool]:
    """Hold the step's lock if the step has to be run; otherwise answer the dispatch and yield False.

    The lock is only ever tried while the decision is held, so one who finds it taken knows that the step is being run.
    """
    with ExitStack() as lock:
        while True:
            with files.deciding():
                if lock.enter_context(files.running()):
                    answered = _answer_idle(order, files, report)
                    if answered:
                        lock.close()
                    break
                if not _just_ended(files):
                    _answer_running(order, files, report)
                    answered = True
                    break
            time.sleep(_LOCK_PAUSE_SECONDS)
        yield not answered


def cancel_step(files: StepFiles, fence: int, report: Report) -> None:
    """Abandon dispatches up to `fence`: a running step sees it by itself, any other is answered at once."""
    if files.cancelled_fence < fence:
        files.cancelled_fence = fence
    with files.deciding(), files.running() as held:
        outcome = files.outcome
        if not held or (outcome is not None and outcome.finished.fence >= fence):
            return  # it runs and will say so, or it has ended and said so
        finished = StepFinished(step=files.step, fence=fence, outcome="cancelled")
        if outcome is not None and outcome.finished.outcome == "succeeded":
            finished = outcome.finished.model_copy(update={"fence": fence})
        files.fence = max(files.fence, fence)
        files.store_outcome(finished, outcome.payload if outcome else {})
        report(finished)


def _just_ended(files: StepFiles) -> bool:
    """True if the run that holds the lock has stored its outcome already and is about to let go."""
    outcome = files.outcome
    return outcome is not None and outcome.finished.fence == files.fence


def _answer_running(order: StepOrder, files: StepFiles, report: Report) -> None:
    if order.fence < files.fence:
        logger.info("step %d: refused dispatch %d, %d is known", order.step, order.fence, files.fence)
    elif files.cancelled_fence < order.fence:  # else the running one is about to end, and will say so
        files.fence = order.fence
        report(StepStillRunning(step=order.step, fence=order.fence))


def _answer_idle(order: StepOrder, files: StepFiles, report: Report) -> bool:
    if order.fence < files.fence:
        logger.info("step %d: refused dispatch %d, %d is known", order.step, order.fence, files.fence)
        return True
    outcome = files.outcome
    if files.cancelled_fence >= order.fence:
        files.fence = order.fence
        if outcome is None or outcome.finished.fence < order.fence:
            finished = StepFinished(step=order.step, fence=order.fence, outcome="cancelled")
            files.store_outcome(finished, order.payload)
            report(finished)
        return True
    files.fence = order.fence
    if outcome is None:
        return False
    same_dispatch = outcome.finished.fence == order.fence
    same_success = outcome.finished.outcome == "succeeded" and outcome.payload == order.payload
    if not (same_dispatch or same_success):
        return False
    finished = outcome.finished.model_copy(update={"fence": order.fence})
    files.store_outcome(finished, outcome.payload)
    report(finished)
    return True


def _run(order: StepOrder, config: HostConfig, files: StepFiles, report: Report) -> None:
    now = time.monotonic()
    context = StepContext(
        order=order,
        config=config,
        files=files,
        report=report,
        began=now,
        deadline=now + order.deadline_seconds,
    )
    report(StepStarted(step=order.step, fence=context.fence))
    logger.info("step %d (%s) begins", order.step, order.kind)
    outcome: dict[str, Any]
    try:
        with files.marked_as_running():
            outcome = {"outcome": "succeeded", "result": _run_module(context)}
    except StepCancelledError:
        outcome = {"outcome": "cancelled"}
    except StepFailedError as error:
        outcome = {"outcome": "failed", "failure": error.failure, "result": error.result}
    except Exception as error:
        # The traceback may quote secrets and belongs to whoever runs the host; people get one sentence.
        logger.exception("step %d (%s) crashed", order.step, order.kind)
        outcome = {"outcome": "failed", "failure": _crash(order, error)}
    with files.deciding():
        finished = StepFinished(step=order.step, fence=context.fence, **outcome)
        files.store_outcome(finished, order.payload)
        report(finished)
    logger.info("step %d (%s) %s after %.1f s", order.step, order.kind, finished.outcome, context.seconds)


def _run_module(context: StepContext) -> dict[str, Any]:
    kind = context.order.kind
    name = f"workers.host.steps.{kind}"
    if importlib.util.find_spec(name) is None:
        raise StepFailedError(
            "host.upgrade_needed",
            f"this host's agent does not know the step {kind.value!r}",
            next_step="Upgrade Slipway on this host, then retry.",
        )
    module = importlib.import_module(name)
    try:
        payload = module.Payload.model_validate(context.order.payload)
    except ValidationError as error:
        fields = ", ".join(".".join(str(part) for part in problem["loc"]) for problem in error.errors())
        raise StepFailedError(
            "step.bad_payload",
            f"the order for this step is not understood: {fields}",
            next_step="The console and this host's agent may be of different versions: upgrade the older one.",
        ) from error
    result: dict[str, Any] = module.run(context, payload).model_dump(mode="json")
    return result


def _crash(order: StepOrder, error: Exception) -> Failure:
    return Failure(
        code="step.crashed",
        message=f"the step {order.kind.value} ended by an error of its own: {type(error).__name__}",
        next="Retry it. If it happens again, the agent's log on the host has the details.",
    )
