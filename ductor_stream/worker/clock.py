"""The clock of a worker's machine. It decides nothing but local timeouts; what is reported by it is for people."""

from __future__ import annotations

import time
from typing import Protocol


class WorkerClock(Protocol):
    """What a worker needs of a clock."""

    def now(self) -> int:
        """Milliseconds since 1970 UTC; may be off, and may jump."""

    def monotonic(self) -> float:
        """Seconds of a clock that never goes back."""


class MachineClock:
    """This machine's own clock: a worker has no database to ask for the time."""

    def now(self) -> int:
        """Milliseconds since 1970 UTC by this machine."""
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        """Seconds of a clock that never goes back."""
        return time.monotonic()
