"""Download: a pinned revision's files come into this host's hub cache, whatever happens on the way.

A step that is cut off leaves its parts; dispatched again it goes on where it was. The files' own digests are checked here
while they come; whether they make up a whole model is the verification's question.
"""

import time
from pathlib import Path

from workers.contracts import MOST_FILES, FileProgress
from workers.host.failures import StepFailedError
from workers.host.step_context import FilesProgress, StepContext
from workers.sealing import SealingError, unseal_any
from workers.step_payloads import DownloadPayload as Payload
from workers.step_payloads import DownloadResult
from workers.weights.download import Downloader
from workers.weights.download_cache import UnsafePathError, hub_cache_of
from workers.weights.download_space import NotEnoughSpaceError
from workers.weights.download_types import DownloadRequest
from workers.weights.download_types import FileProgress as OneFile
from workers.weights.hub import HubFile, Source, SourceKind, lookup, select_files
from workers.weights.hub_errors import (
    ChecksumMismatchError,
    FileChangedError,
    ForbiddenError,
    HubError,
    HubFileNotFoundError,
    TokenNeededError,
    UnauthorizedError,
    as_sentence,
)

__all__ = ["Payload", "run"]

TOKEN = "hub_token"  # noqa: S105 - the name under which it comes, not a token


def run(context: StepContext, payload: Payload) -> DownloadResult:
    """Return where the revision lies; fail with the hub's own code, or with what the disk lacks."""
    token = _token(context)
    cache = hub_cache_of(context.config.models_dir)
    try:
        request = _request(payload, token)
        downloader = Downloader(request, cache, token=token, tell=context.event)
        telling = _Telling(context, downloader)
        done = downloader.run(telling)
    except HubError as error:
        if payload.giver:
            raise _giver_failure(context, payload, error) from error
        raise StepFailedError(error.code, as_sentence(error.message), next_step=error.next_step) from error
    except NotEnoughSpaceError as error:
        raise StepFailedError(
            "disk.not_enough", as_sentence(str(error)), next_step="Free space there, or choose fewer files; then retry."
        ) from error
    except UnsafePathError as error:
        raise StepFailedError("path.unsafe", as_sentence(str(error)), next_step="Look the model up again.") from error
    except OSError as error:
        raise _disk_failure(cache, error) from error
    return DownloadResult(
        model_path=str(done.snapshot),
        commit=request.commit,
        files=done.files,
        size_bytes=done.size,
        fetched_bytes=done.fetched,
        seconds=round(context.seconds, 1),
        repaired=list(done.repaired),
    )


class _Telling:
    """Called ten times a second while the files come: tells how far it is, raises when the step must not go on."""

    def __init__(self, context: StepContext, downloader: Downloader) -> None:
        self._context = context
        self._downloader = downloader
        self._before: dict[str, tuple[float, int]] = {}

    def __call__(self) -> None:
        self._context.check()
        progress = self._downloader.progress()
        self._context.progress(
            progress.done, progress.total, unit="bytes", waiting_for=progress.waiting_for, files=self._files
        )

    def _files(self) -> FilesProgress:
        """Each file with its own rate since this was last asked."""
        files = self._downloader.files()
        now = time.monotonic()
        shown = [self._shown(file, now) for file in files[:MOST_FILES]]
        self._before = {file.path: (now, file.done) for file in files[:MOST_FILES] if file.state == "active"}
        return FilesProgress(shown, len(files), sum(file.state == "done" for file in files))

    def _shown(self, file: OneFile, now: float) -> FileProgress:
        since, before = self._before.get(file.path, (now, file.done))
        rate = (file.done - before) / (now - since) if now > since and file.state == "active" else None
        return FileProgress(
            path=file.path,
            done=file.done,
            total=file.size,
            state=file.state,
            rate=rate,
            remaining_seconds=(file.size - file.done) / rate if rate else None,
            waiting_for=file.trouble,
        )


def _request(payload: Payload, token: str) -> DownloadRequest:
    source = Source(SourceKind(payload.source), payload.endpoint)
    files = tuple(HubFile(file.path, file.size, file.sha256, file.git_oid) for file in payload.files)
    commit = payload.commit
    if not files:
        facts = lookup(source, payload.repository, payload.commit, token)
        if facts.refusal is not None:
            raise facts.refusal
        files, commit = select_files(facts.files).files, facts.commit
        if not files:
            raise HubFileNotFoundError(f"{payload.repository} holds no file that an engine could use")
    return DownloadRequest(
        source=source,
        repository=payload.repository,
        commit=commit,
        files=files,
        revision=payload.revision,
        repair=frozenset(payload.repair),
        connections=payload.connections,
        rate_limit=payload.rate_limit,
        stall_seconds=payload.stall_seconds,
        patience_seconds=payload.patience_seconds,
        direct=bool(payload.giver),
    )


def _token(context: StepContext) -> str:
    sealed = context.order.sealed.get(TOKEN, "")
    if not sealed:
        return ""
    try:
        return unseal_any(context.config.private_keys, sealed)
    except SealingError as error:
        raise StepFailedError(
            "secret.unreadable",
            "the source's token can't be opened on this host: it was sealed to another key, or altered",
            next_step="If the host was joined anew, retry: the console seals it to the key that it has now.",
        ) from error


def _giver_failure(context: StepContext, payload: Payload, error: HubError) -> StepFailedError:
    """What a failure means when the files come from another host: who, at which address, and what to do."""
    own, giver, at = context.config.name, payload.giver, payload.endpoint.partition("://")[2]
    if isinstance(error, ChecksumMismatchError):
        code, text = "copy.checksum_mismatch", f"host {giver} gives other bytes than its manifest says: {error.message}"
        advice = f"Verify the copy on {giver} again and repair it; or fetch the model from its source."
    elif isinstance(error, FileChangedError | HubFileNotFoundError):
        code, text = "copy.source_changed", f"host {giver} no longer has what was verified: {error.message}"
        advice = f"Verify the copy on {giver} again, then retry; or fetch the model from its source."
    elif isinstance(error, UnauthorizedError | TokenNeededError | ForbiddenError):
        code, text = "copy.refused", f"host {giver} at {at} does not accept this job's token"
        advice = "Retry: the copy is opened anew. If it stays, something else answers at that address."
    elif error.temporary:
        code, text = "copy.unreachable", f"host {own} gets nothing from {giver} at {at}: {error.message}"
        advice = (
            f"Let {own} reach that address and port (network, firewall), or set advertised_address in {giver}'s host.json; "
            "then retry. Or fetch the model from its source."
        )
    else:
        code, text, advice = (
            "copy.bad_answer",
            f"{at} does not answer as {giver} would: {error.message}",
            error.next_step,
        )
    return StepFailedError(code, as_sentence(text), next_step=advice)


def _disk_failure(cache: Path, error: OSError) -> StepFailedError:
    return StepFailedError(
        "disk.failed",
        f"the hub cache {cache} can't be used: {error.strerror or error}",
        next_step="Check the directory's owner, its rights and the disk; then retry.",
    )
