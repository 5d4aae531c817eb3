"""What a download waits for, in words, and when it tries again after something went wrong."""

import time

from workers.weights.download_job import Job, pause_after
from workers.weights.download_source import ShortAnswerError, SilentError
from workers.weights.hub_errors import HubError, RateLimitedError, UnreachableError

_MOST_SHORT_ANSWERS = 10
_QUIET_SECONDS = 5.0


class Trouble:
    """The troubles of one download. Not locked: whoever writes holds the download's own lock, or writes one value.

    `no_space` says that the disk is full, `reading` names a file whose bytes on the disk are being checked.
    """

    def __init__(self, jobs: list[Job], patience_seconds: float) -> None:
        self.no_space = ""
        self.reading = ""
        self._jobs = jobs
        self._patience_seconds = patience_seconds
        self._moved_at = time.monotonic()
        self._pause_until = 0.0
        self._pause_reason = ""

    def over(self, job: Job) -> None:
        """Bytes have come."""
        job.failures, job.trouble = 0, ""
        self._moved_at = time.monotonic()

    def pauses(self, now: float) -> bool:
        """True while the source should be asked for nothing at all."""
        return now < self._pause_until

    def after_failure(self, job: Job, error: HubError) -> None:
        """Decide when this file is tried again; raises the error when trying again can't help."""
        if not error.temporary:
            raise error
        if isinstance(error, ShortAnswerError):
            job.short_answers += 1
            if job.short_answers >= _MOST_SHORT_ANSWERS:
                raise error
        now = time.monotonic()
        if not job.failures:
            job.trouble_since = now
        if now - job.trouble_since > self._patience_seconds:
            raise error
        job.not_before = now + pause_after(job.failures, error.retry_after)
        job.failures += 1
        job.trouble = error.message
        if isinstance(error, RateLimitedError | UnreachableError) and not isinstance(error, SilentError):
            self._pause_until = max(self._pause_until, job.not_before)
            self._pause_reason = error.message

    def waiting_for(self) -> str:
        """What keeps the download from going on; empty while bytes come."""
        if self.no_space:
            return self.no_space
        now = time.monotonic()
        if self.pauses(now):
            seconds = max(1.0, self._pause_until - now)
            return f"the source, which is asked again in {seconds:.0f} s: {self._pause_reason.rstrip('.')}"
        waiting = [job for job in self._jobs if not job.done]
        troubled = next((job for job in waiting if job.trouble), None)
        if troubled is not None and all(job.trouble or not job.active for job in waiting):
            return f"the source: {troubled.trouble.rstrip('.')}"
        quiet = now - self._moved_at > _QUIET_SECONDS
        if self.reading and quiet:
            return f"{self.reading} to be read: what is there already is checked"
        if waiting and quiet:
            return f"the source, which has sent nothing for {now - self._moved_at:.0f} s"
        return ""
