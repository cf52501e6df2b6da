"""A process whose workflow code hangs is ended, so that another owner finds the run that did it (protocol 23)."""

from __future__ import annotations

import faulthandler
import sys
import time

LIMIT_S = 60.0
"""A batch is ticked in milliseconds, the longest history rebuilt in some 14 s of processor: after a minute it will not end."""
_HELD_FOR_S = 5.0


class DeadMansSwitch:
    """Ends the process, with the traceback of every thread, unless ``hold`` is called again and again.

    The clock is the fault handler's own thread, which does not need the interpreter: it fires also when
    an endless C call holds the interpreter's lock.
    """

    def __init__(self, limit_s: float = LIMIT_S) -> None:
        self._limit_s = limit_s
        self._held_at = 0.0

    def hold(self, ticking_for: float) -> None:
        """All is well, unless ticks have been running for so many seconds."""
        now = time.monotonic()
        if now - self._held_at >= min(_HELD_FOR_S, self._limit_s / 4) and ticking_for < self._limit_s / 2:
            self._held_at = now
            faulthandler.dump_traceback_later(self._limit_s, exit=True, file=sys.__stderr__ or sys.stderr)

    def release(self) -> None:
        """The process ends in good order."""
        faulthandler.cancel_dump_traceback_later()
