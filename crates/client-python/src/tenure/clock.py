"""The clocks of a holder."""

from __future__ import annotations

import time
from threading import Lock

if hasattr(time, "CLOCK_BOOTTIME"):

    def now() -> float:
        """Seconds since boot, time asleep included: a lease runs out while its holder sleeps."""
        return time.clock_gettime(time.CLOCK_BOOTTIME)

else:

    def now() -> float:
        """Seconds of the monotonic clock, which may stop while the machine sleeps."""
        return time.monotonic()


class ClusterClock:
    """What cluster time must be by now: a stamp that was seen, and the time since.

    Cluster time may run slower than this (an outage counts as no time), never noticeably faster.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._ahead: float | None = None

    def heard(self, now_ms: int) -> None:
        """Takes in the stamp of a command that was just answered."""
        with self._lock:
            self._ahead = now_ms - now() * 1000

    def after(self, seconds: float) -> int | None:
        """Cluster time in so many seconds, if a stamp was seen."""
        with self._lock:
            ahead = self._ahead
        return None if ahead is None else int(ahead + (now() + seconds) * 1000)
