"""A limit on bytes per second that all connections of a download share."""

import threading
import time
from collections.abc import Callable


class RateLimit:
    """Lets `rate` bytes per second through on average; 0: everything. A pause is not saved up for later."""

    def __init__(self, rate: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate = rate
        self._clock = clock
        self._lock = threading.Lock()
        self._free_at = clock()

    def delay_for(self, count: int) -> float:
        """Seconds that whoever has just taken `count` bytes has to wait before it takes more."""
        if not self._rate:
            return 0.0
        with self._lock:
            now = self._clock()
            self._free_at = max(self._free_at, now) + count / self._rate
            return max(0.0, self._free_at - now)
