"""Fetches a pinned revision's files into the hub cache, and survives whatever happens on the way.

Several files, and several ranges of a large one, come at once over a fixed number of connections. Every byte goes from the
connection to the disk and into the hash; nothing is kept in memory, and a restart goes on where the last process was
killed (`download_part`). What is temporary is tried again for as long as the caller's patience lasts; what is not ends the
download with a `HubError`. A file gets its final name only when its digest is the expected one.
"""

import errno
import threading
import time
from collections.abc import Callable
from pathlib import Path

from workers.weights.download_cache import RepositoryCache
from workers.weights.download_job import Job, digest_of, jobs_of
from workers.weights.download_part import PART_ENDING, PartBusyError, PartClosedError, PartFile, Span, StaleSpanError
from workers.weights.download_rate import RateLimit
from workers.weights.download_source import FileSource, ShortAnswerError
from workers.weights.download_space import Reservation, free_bytes, reserve
from workers.weights.download_trouble import Trouble
from workers.weights.download_types import Downloaded, DownloadRequest, FileProgress, Progress, StoppedError
from workers.weights.hub_errors import (
    BadAnswerError,
    ChecksumMismatchError,
    HubError,
)

SPAN_BYTES = 32 << 20
_SYNC_SECONDS = 5.0
_POLL_SECONDS = 0.1
_BUSY_SECONDS = 0.5
_SPACE_TO_GO_ON = 64 << 20
_LEAVE_SECONDS = 5.0
_FULL = (errno.ENOSPC, errno.EDQUOT)


class Downloader:
    """One download. `run` does all of it; `progress` may be asked from any thread meanwhile."""

    def __init__(
        self,
        request: DownloadRequest,
        cache: Path,
        *,
        token: str = "",
        tell: Callable[[str], None] = lambda _text: None,
    ) -> None:
        self._request = request
        self._store = RepositoryCache(cache, request.repository)
        self._tell = tell
        self._files = FileSource(
            request.source,
            request.repository,
            request.commit,
            token,
            stall_seconds=request.stall_seconds,
            connections=request.connections,
            direct=request.direct,
        )
        self._jobs = jobs_of(request, self._store)
        self._rate = RateLimit(request.rate_limit)
        self._changed = threading.Condition()
        self._stop = threading.Event()
        self._error: BaseException | None = None
        self._fetched = 0
        self._sends_to_end = False
        self._trouble = Trouble(self._jobs, request.patience_seconds)
        self._repaired: list[str] = []

    # -- the caller's thread -----------------------------------------------------------------------------------------

    def run(self, check: Callable[[], None] = lambda: None) -> Downloaded:
        """Fetch everything. `check` is called ten times a second and ends the download by raising; parts are kept.

        Raises a `HubError`, `NotEnoughSpaceError`, or what `check` raised.
        """
        self._store.make()
        try:
            self._check_repairs(check)
            reservation = reserve(self._store.cache, self._space_needed())
            try:
                self._run_threads(check, reservation)
            finally:
                reservation.release()
        finally:
            self._files.close()
        return self._link()

    def progress(self) -> Progress:
        """How far it is now."""
        running = tuple(
            FileProgress(job.paths[0], job.received, job.file.size)
            for job in self._jobs
            if job.active and job.part is not None and not job.done
        )
        return Progress(
            done=sum(job.received * len(job.paths) for job in self._jobs),
            total=sum(job.file.size * len(job.paths) for job in self._jobs),
            fetched=self._fetched,
            running=running,
            waiting_for=self._trouble.waiting_for(),
        )

    def files(self) -> list[FileProgress]:
        """How far each file is: those that are coming now first, then those that are still to come, then the others."""
        found = [
            FileProgress(path, job.received, job.file.size, job.phase, "" if job.done else job.trouble)
            for job in self._jobs
            for path in job.paths
        ]
        return sorted(found, key=lambda file: ("active", "waiting", "done").index(file.state))

    def _run_threads(self, check: Callable[[], None], reservation: Reservation) -> None:
        threads = [
            threading.Thread(target=self._work, name=f"download-{number}", daemon=True)
            for number in range(self._request.connections)
        ]
        for thread in threads:
            thread.start()
        synced_at = time.monotonic()
        try:
            while any(thread.is_alive() for thread in threads) and self._error is None:
                check()
                if time.monotonic() - synced_at > _SYNC_SECONDS:
                    self._sync(reservation)
                    synced_at = time.monotonic()
                with self._changed:
                    self._changed.wait(_POLL_SECONDS)
        finally:
            self._end(threads)
        if self._error is not None:
            raise self._error

    def _sync(self, reservation: Reservation) -> None:
        for job in self._jobs:
            if (part := job.part) is not None and not job.done:
                part.sync()
        reservation.lower_to(sum(job.file.size - job.received for job in self._jobs))

    def _end(self, threads: list[threading.Thread]) -> None:
        """Let go of everything. A thread that hangs in a connection attempt is left behind: it can write no more."""
        self._stop.set()
        with self._changed:
            self._changed.notify_all()
        self._files.abort()
        deadline = time.monotonic() + _LEAVE_SECONDS
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        for job in self._jobs:
            if job.part is not None:
                job.part.close()

    def _link(self) -> Downloaded:
        for job in self._jobs:
            for path in job.paths:
                self._store.link(self._request.commit, path, job.blob_path or job.blob)
        if self._request.revision and self._request.revision != self._request.commit:
            self._store.point(self._request.revision, self._request.commit)
        return Downloaded(
            snapshot=self._store.snapshot(self._request.commit),
            files=sum(len(job.paths) for job in self._jobs),
            size=sum(job.file.size * len(job.paths) for job in self._jobs),
            fetched=self._fetched,
            repaired=tuple(self._repaired),
        )

    # -- what is there already ---------------------------------------------------------------------------------------

    def _is_there(self, job: Job) -> bool:
        """Take a blob that is complete; its name is its digest, and the verification hashes it before any launch."""
        if not job.done and job.blob.is_file() and job.blob.stat().st_size == job.file.size:
            job.blob_path = job.blob
        if not job.done and not job.file.sha256 and not job.file.git_oid:
            self._take_linked(job)
        return job.done

    def _take_linked(self, job: Job) -> None:
        """A source that lists no digest gives no name for the blob: the snapshot's link tells where the file lies."""
        linked = self._store.snapshot(self._request.commit) / job.paths[0]
        wanted_anew = not self._request.repair.isdisjoint(job.paths)
        if not wanted_anew and linked.is_file() and linked.stat().st_size == job.file.size:
            job.blob_path = linked.resolve()

    def _space_needed(self) -> int:
        """Bytes that the disk must still take: what interrupted downloads left is there already."""
        needed = 0
        for job in self._jobs:
            if not self._is_there(job):
                part = job.blob.with_name(job.blob.name + PART_ENDING)
                there = part.stat().st_blocks * 512 if part.is_file() else 0
                needed += max(0, job.file.size - there)
        return needed

    def _check_repairs(self, check: Callable[[], None]) -> None:
        """Hash the files that are said to be damaged; remove those that are, so that they are fetched again."""
        for job in self._jobs:
            if self._request.repair.isdisjoint(job.paths) or not job.blob.is_file():
                continue
            self._trouble.reading = job.paths[0]
            if digest_of(job.blob, job.file, check) != (job.file.sha256 or job.file.git_oid):
                job.blob.unlink()
                self._repaired += job.paths
                self._tell(f"{job.paths[0]} is damaged and is fetched again.")
            else:
                self._tell(f"{job.paths[0]} is whole; it stays.")
        self._trouble.reading = ""

    # -- the connections' threads ------------------------------------------------------------------------------------

    def _work(self) -> None:
        try:
            while (job := self._next_job()) is not None:
                try:
                    self._work_on(job)
                finally:
                    with self._changed:
                        job.active -= 1
                        self._changed.notify_all()
        except (StoppedError, PartClosedError):
            return
        except BaseException as error:
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        with self._changed:
            if self._error is None and not self._stop.is_set():
                self._error = error
            self._stop.set()
            self._changed.notify_all()

    def _check(self) -> None:
        if self._stop.is_set():
            raise StoppedError

    def _sleep(self, seconds: float) -> None:
        if self._stop.wait(seconds):
            raise StoppedError

    def _next_job(self) -> Job | None:
        """The file that the fewest connections work on, begun ones first; None when all are there."""
        with self._changed:
            while True:
                self._check()
                if all(job.done for job in self._jobs):
                    return None
                now = time.monotonic()
                ready = (
                    [job for job in self._jobs if self._wants_connection(job, now)]
                    if not self._trouble.pauses(now)
                    else []
                )
                if ready:
                    job = min(ready, key=lambda job: job.active)
                    job.active += 1
                    job.opening = job.part is None
                    return job
                self._changed.wait(_POLL_SECONDS)

    def _wants_connection(self, job: Job, now: float) -> bool:
        if job.done or job.opening or job.finishing or now < job.not_before:
            return False
        if job.active and (self._sends_to_end or not job.answered):
            return False
        return job.part is None or job.part.has_work() or job.part.complete

    def _work_on(self, job: Job) -> None:
        part = job.part or self._open(job)
        if part is None:
            return
        if not part.complete:
            span = part.claim(self._request.connections, SPAN_BYTES)
            if span is not None:
                self._fetch(job, part, span)
        if part.complete:
            self._finish(job, part)

    def _open(self, job: Job) -> PartFile | None:
        """Take the part's lock and hash what an earlier process fetched. None if it is not needed, or taken."""
        try:
            if self._is_there(job):
                return None
            part = self._new_part(job)
            if self._is_there(job):  # whoever held the lock has just finished it
                part.discard()
                return None
            job.part = part
            if part.resumed:
                self._tell(f"{job.paths[0]} goes on at {part.resumed:,} of {job.file.size:,} bytes.")
        except PartBusyError as error:
            job.not_before, job.trouble = time.monotonic() + _BUSY_SECONDS, str(error)
            return None
        finally:
            job.opening = False
        self._trouble.reading = job.paths[0] if part.resumed else ""
        part.hash_what_is_there(self._check)
        self._trouble.reading = ""
        return part

    def _new_part(self, job: Job) -> PartFile:
        while True:
            try:
                return PartFile(job.blob, job.file.size, sha256=job.file.sha256, git_oid=job.file.git_oid)
            except OSError as error:
                if error.errno not in _FULL:
                    raise
                self._wait_for_space(job.file.size)

    def _fetch(self, job: Job, part: PartFile, span: Span) -> None:
        before = span.position
        try:
            self._transfer(job, part, span)
        except StaleSpanError:
            return
        except HubError as error:
            if self._stop.is_set():
                raise StoppedError from error
            if span.position > before:
                job.failures = job.short_answers = 0
            with self._changed:
                self._trouble.after_failure(job, error)
        finally:
            part.release(span)

    def _transfer(self, job: Job, part: PartFile, span: Span) -> None:
        etag = "" if job.started_over else part.etag
        with self._files.open(job.file, span.position, span.end, etag=etag) as answer:
            job.answered = True
            # Such a source would be cut off at each range's end, with bytes on their way: one connection reads it through.
            self._sends_to_end = self._sends_to_end or answer.end > span.end
            self._compare_etag(job, part, answer.etag)
            position = answer.start
            if position > span.position:
                raise BadAnswerError(f"the source sends {job.file.path} from byte {position:,}, not {span.position:,}")
            for chunk in answer.chunks:
                self._check()
                news = memoryview(chunk)[max(0, span.position - position) :]
                position += len(chunk)
                wanted = self._take(job, part, span, news)
                with self._changed:
                    self._fetched += len(chunk)
                if not wanted:
                    return
                self._sleep_for_rate(len(chunk))
        if span.position < span.end:
            raise ShortAnswerError(f"the source ended {job.file.path} at byte {span.position:,} of {job.file.size:,}")

    def _compare_etag(self, job: Job, part: PartFile, etag: str) -> None:
        if etag == part.etag or not etag:
            return
        if part.etag and part.received and not job.started_over:
            # The bytes so far may be another file's; mixing both would be found only at the very end.
            job.started_over += 1
            self._tell(f"{job.paths[0]} has changed at the source; it is fetched from the beginning.")
            part.empty()
            raise ShortAnswerError(f"{job.file.path} has changed at the source")
        part.remember_etag(etag)

    def _take(self, job: Job, part: PartFile, span: Span, news: memoryview) -> bool:
        """Write what came; False when it is not wanted any more."""
        while news:
            if span.position >= span.end and not part.extend(span):
                return False
            count = min(len(news), span.end - span.position)
            self._write(part, span, news[:count])
            news = news[count:]
            self._trouble.over(job)
        return True

    def _write(self, part: PartFile, span: Span, data: memoryview) -> None:
        """Write; a full disk is waited for."""
        while data:
            before = span.position
            try:
                part.write(span, data)
                self._trouble.no_space = ""
            except OSError as error:
                if error.errno not in _FULL:
                    raise
                data = data[span.position - before :]
                self._wait_for_space(part.size - part.received)
            else:
                return

    def _wait_for_space(self, missing: int) -> None:
        """Return when there is room for a good piece of what is missing; the download says meanwhile what it waits for."""
        folder = self._store.cache
        wanted = min(missing, _SPACE_TO_GO_ON)
        while True:
            free = free_bytes(folder)
            self._trouble.no_space = (
                f"space on the disk that holds {folder}: it is full, "
                f"{sum(job.file.size - job.received for job in self._jobs) / 1e9:.2f} GB are still to come"
            )
            self._sleep(_BUSY_SECONDS)
            if free >= wanted:
                return

    def _sleep_for_rate(self, count: int) -> None:
        if (delay := self._rate.delay_for(count)) > 0:
            self._sleep(delay)

    # -- the end of a file -------------------------------------------------------------------------------------------

    def _finish(self, job: Job, part: PartFile) -> None:
        with self._changed:
            if job.finishing or job.done or job.part is not part:
                return
            job.finishing = True
        try:
            digest = part.digest(self._check)
            expected = job.file.sha256 or job.file.git_oid
            if expected and digest != expected:
                self._start_over(job, part, digest)
                return
            blob = job.blob if expected else job.blob.with_name(digest)
            part.finish(blob)
            job.blob_path = blob
            self._tell(f"{job.paths[0]} is here, {job.file.size:,} bytes.")
        finally:
            job.finishing = False

    def _start_over(self, job: Job, part: PartFile, digest: str) -> None:
        """One wrong byte may have come from a bad proxy: fetch it once more, but not for ever."""
        if job.started_over > 1:
            raise ChecksumMismatchError(
                f"the source sends {job.paths[0]} with digest {digest[:16]}…, its listing says "
                f"{(job.file.sha256 or job.file.git_oid)[:16]}…; it was fetched {job.started_over} times"
            )
        job.started_over = 2
        self._tell(f"{job.paths[0]} came with wrong bytes; it is fetched once more.")
        part.empty()
