"""Serve copy: another host may read a verified copy of this one, until the job's copying is over.

The step only checks the files and waits until the agent has opened; the agent closes when the offer leaves the desired
state, whatever became of the job.
"""

import socket
from contextlib import suppress

from workers.host.addresses import own_address
from workers.host.failures import StepFailedError
from workers.host.offer_files import OfferFiles, Opened
from workers.host.step_context import POLL_SECONDS, StepContext
from workers.host.steps.preflight import resolve_model_path
from workers.step_payloads import ServeCopyPayload as Payload
from workers.step_payloads import ServeCopyResult
from workers.weights.verification import FileRecord, changed_files

__all__ = ["Payload", "run"]

_SHOWN_FILES = 5
_CONNECT_SECONDS = 2.0


def run(context: StepContext, payload: Payload) -> ServeCopyResult:
    """Return where the files can be read; fail if one of them is not what was verified."""
    path = resolve_model_path(context.config.models_dir, payload.model_path)
    given = {file.path for file in payload.files}
    records = [FileRecord(**file.model_dump()) for file in payload.files]
    if changed := [name for name in changed_files(path, records) if name in given]:
        more = f" and {len(changed) - _SHOWN_FILES} more" if len(changed) > _SHOWN_FILES else ""
        raise StepFailedError(
            "copy.source_changed",
            f"files of {path} were touched since they were verified: {', '.join(changed[:_SHOWN_FILES])}{more}",
            next_step="Verify that copy again, then retry; or fetch the model from its source.",
        )
    files = OfferFiles(context.config.state_dir, payload.offer)
    files.prepare(own_address(context.config, same_machine=payload.same_machine), payload.files)
    opened = _wait_until_open(context, files)
    context.event(f"The files can be read at {opened.endpoint}, by this job alone.")
    return ServeCopyResult(
        endpoint=opened.endpoint, files=len(payload.files), size_bytes=sum(file.size for file in payload.files)
    )


def _wait_until_open(context: StepContext, files: OfferFiles) -> Opened:
    while True:
        context.check()
        opened = files.opened
        if opened is not None and _answers(opened):
            return opened
        if problem := files.problem:
            raise StepFailedError(
                "copy.not_opened",
                f"this host can't give the copy: {problem}",
                next_step="Check advertised_address and port_range in its host.json, then retry.",
            )
        context.progress(context.seconds, unit="seconds", waiting_for="the agent to open")
        context.sleep(POLL_SECONDS)


def _answers(opened: Opened) -> bool:
    with suppress(OSError), socket.create_connection((opened.address, opened.port), timeout=_CONNECT_SECONDS):
        return True
    return False
