"""The one adapter of the wall clock: Postgres's time, carried on by the monotonic clock (protocol 20)."""

from __future__ import annotations

import time


class StoreClock:
    """Postgres's clock between two samples. Never ahead of it by more than the drift of the monotonic clock.

    A sample is taken after Postgres has answered, so that what is due here is due there: no timer is early.
    """

    def __init__(self) -> None:
        self._store_ms = 0
        self._sampled_at = 0.0

    def now(self) -> int:
        """Milliseconds since 1970 UTC; 0 before the first sample."""
        return self._store_ms + int((time.monotonic() - self._sampled_at) * 1000) if self._sampled_at else 0

    def observe(self, store_now: int) -> None:
        """A sample of the store's clock (ms), taken just now."""
        self._sampled_at = time.monotonic()
        self._store_ms = store_now

    def monotonic(self) -> float:
        """Seconds of a clock that never goes back."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Block for that long."""
        time.sleep(seconds)
