"""Download: a pinned revision's files come into this host's hub cache, whatever happens on the way.

A step that is cut off leaves its parts; dispatched again it goes on where it was. The files' own digests are checked here
while they come; whether they make up a whole model is the verification's question.
"""

from pathlib import Path

from workers.host.failures import StepFailedError
from workers.host.step_context import StepContext
from workers.sealing import SealingError, unseal
from workers.step_payloads import DownloadPayload as Payload
from workers.step_payloads import DownloadResult
from workers.weights.download import Downloader
from workers.weights.download_cache import UnsafePathError, hub_cache_of
from workers.weights.download_space import NotEnoughSpaceError
from workers.weights.download_types import DownloadRequest, Progress
from workers.weights.hub import HubFile, Source, SourceKind, lookup, select_files
from workers.weights.hub_errors import HubError, HubFileNotFoundError

__all__ = ["Payload", "run"]

TOKEN = "hub_token"  # noqa: S105 - the name under which it comes, not a token
_SAY_FILES_EVERY_SECONDS = 2.0
_SHOWN_FILES = 3


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
        raise StepFailedError(error.code, _sentence(error.message), next_step=error.next_step) from error
    except NotEnoughSpaceError as error:
        raise StepFailedError(
            "disk.not_enough", _sentence(str(error)), next_step="Free space there, or choose fewer files; then retry."
        ) from error
    except UnsafePathError as error:
        raise StepFailedError("path.unsafe", _sentence(str(error)), next_step="Look the model up again.") from error
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
        self._said_at = float("-inf")
        self._files = ""

    def __call__(self) -> None:
        self._context.check()
        progress = self._downloader.progress()
        if self._context.seconds - self._said_at >= _SAY_FILES_EVERY_SECONDS:
            # Text that changes all the time would be sent all the time.
            self._said_at, self._files = self._context.seconds, _files(progress)
        waiting_for = progress.waiting_for or self._files
        self._context.progress(progress.done, progress.total, unit="bytes", waiting_for=waiting_for)


def _files(progress: Progress) -> str:
    """The files that are coming now, with how far each is."""
    running = [f"{file.path} ({100 * file.done // max(file.size, 1)} %)" for file in progress.running]
    more = f" and {len(running) - _SHOWN_FILES} more" if len(running) > _SHOWN_FILES else ""
    return ", ".join(running[:_SHOWN_FILES]) + more


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
    )


def _token(context: StepContext) -> str:
    sealed = context.order.sealed.get(TOKEN, "")
    if not sealed:
        return ""
    try:
        return unseal(context.config.private_key, sealed)
    except SealingError as error:
        raise StepFailedError(
            "secret.unreadable",
            "the source's token can't be opened on this host: it was sealed to another key, or altered",
            next_step="If the host was joined anew, retry: the console seals it to the key that it has now.",
        ) from error


def _disk_failure(cache: Path, error: OSError) -> StepFailedError:
    return StepFailedError(
        "disk.failed",
        f"the hub cache {cache} can't be used: {error.strerror or error}",
        next_step="Check the directory's owner, its rights and the disk; then retry.",
    )


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:] + ("" if text.endswith(".") else ".")
