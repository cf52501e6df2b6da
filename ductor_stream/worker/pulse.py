"""The pulse: one thread that looks at each attempt when its heartbeat or its timeout is due.

It is apart from the event loop on purpose: a step that blocks the loop must not silence the others.
"""

from __future__ import annotations

import heapq
import itertools
import threading
from collections.abc import Callable, Sequence

from ductor_stream.telemetry.logs import get_logger, keys_of
from ductor_stream.worker.attempt import NEVER, Attempt

_log = get_logger(__name__)

LOOK_AGAIN_S = 1.0
"""Something else than attempts is looked at this often while the pulse beats (is the event loop stuck?)."""

_COMPACT_ABOVE = 4_096


class Pulse:
    """Calls ``look(attempt, now)`` whenever an attempt is due, and ``round(now)`` about once a second."""

    def __init__(
        self, monotonic: Callable[[], float], look: Callable[[Attempt, float], None], around: Callable[[float], None]
    ) -> None:
        self._monotonic = monotonic
        self._look = look
        self._around = around
        self._fresh: list[Attempt] = []
        self._fresh_due = NEVER
        self._wakes_at = -NEVER
        self._due: list[tuple[float, int, Attempt]] = []
        self._numbers = itertools.count()
        self._compact_above = _COMPACT_ABOVE
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="ductor-pulse", daemon=True)

    def start(self) -> None:
        """Begin to beat."""
        self._thread.start()

    def close(self) -> None:
        """Stop; nothing is called any more when this returns."""
        with self._lock:
            self._closed = True
            self._changed.notify()
        if self._thread.is_alive():
            self._thread.join()

    def begin(self, attempts: Sequence[Attempt]) -> None:
        """Look after attempts that begin now. Most have ended before anything is due: those cost no more than this."""
        due = min([attempt.first_due for attempt in attempts], default=NEVER)
        with self._lock:
            self._fresh += attempts
            self._fresh_due = min(self._fresh_due, due)
            if due < self._wakes_at:
                self._changed.notify()

    def watch(self, attempt: Attempt) -> None:
        """Look at the attempt when it is due; call again whenever that has become earlier."""
        self._watch_at(attempt, attempt.due)

    def _watch_at(self, attempt: Attempt, due: float) -> None:
        if due == NEVER:
            return
        with self._lock:
            heapq.heappush(self._due, (due, next(self._numbers), attempt))
            if len(self._due) > self._compact_above:
                self._compact()
            if due < self._wakes_at:
                self._changed.notify()

    def step(self, now: float) -> float:
        """Look at everything that is due by ``now``; returns when the next one is."""
        self._sort_in()
        while True:
            with self._lock:
                if not self._due:
                    return NEVER
                if self._due[0][0] > now:
                    return self._due[0][0]
                _, _, attempt = heapq.heappop(self._due)
            if attempt.settled:
                continue
            try:
                self._look(attempt, now)
                self.watch(attempt)
            except Exception:  # noqa: BLE001 (the pulse must not end by one attempt)
                _log.exception("an attempt could not be looked after", **keys_of(attempt.fence))
                self._watch_at(attempt, now + LOOK_AGAIN_S)

    def _sort_in(self) -> None:
        """Those that have begun and not ended since the last time."""
        with self._lock:
            fresh, self._fresh, self._fresh_due = self._fresh, [], NEVER
        for attempt in fresh:
            if not attempt.settled:
                self.watch(attempt)

    def _compact(self) -> None:
        """Drop the entries of attempts that have ended: those with a long timeout would stay until it is due."""
        self._due = [entry for entry in self._due if not entry[2].settled]
        heapq.heapify(self._due)
        self._compact_above = max(_COMPACT_ABOVE, 2 * len(self._due))

    def _run(self) -> None:
        around_at = 0.0
        while not self._closed:
            now = self._monotonic()
            due = self.step(now)
            if now >= around_at:
                try:
                    self._around(now)
                except Exception:  # noqa: BLE001 (nor by this)
                    _log.exception("the round of the pulse failed")
                around_at = now + LOOK_AGAIN_S
            # Without anything due there is nothing to watch either; the first attempt wakes this thread.
            with self._lock:
                if not self._closed and (not self._due or self._due[0][0] >= due):
                    self._sleep(min(due, self._fresh_due), around_at)

    def _sleep(self, due: float, around_at: float) -> None:
        self._wakes_at = NEVER if due == NEVER else min(due, around_at)
        self._changed.wait(None if due == NEVER else max(0.0, self._wakes_at - self._monotonic()))
        self._wakes_at = -NEVER
