"""Tasks under which workers are lost (decision 15): begun one at a time from the second loss on, given up at the fourth.

Which task ends its process, by a crash of a C library or by all of the memory, nobody can tell from outside. So each
commit of offsets says what is begun; whoever takes the partition from a worker that did not hand it over counts one
loss for that. Beginning one at a time spares those that end soon; what runs on beside such a task is blamed with it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Literal

ALONE_FROM, GIVEN_UP_AT = 2, 4
"""Losses of workers under a task."""

ALONE_S = 1.0
"""For how long after such a task has begun nothing else begins in its process, unless it ends before."""


class Careful:
    """Decides about the tasks of one process. Used by the thread of each queue."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._runs: Callable[[], bool] = lambda: False
        self._alone_until = 0.0

    def verdict(self, losses: int, *, beside: bool) -> Literal["begin", "alone", "wait", "give up"]:
        """What becomes of a task under which so many workers were lost; ``beside``: others begin in the same moment.

        After "alone" nothing else may begin; ``begins_alone`` is to follow.
        """
        if losses >= GIVEN_UP_AT:
            return "give up"
        if losses < ALONE_FROM and not self._alone_until:
            return "begin"
        with self._lock:
            now = self._monotonic()
            if now < self._alone_until and self._runs():
                return "wait"
            self._alone_until = 0.0
            if losses < ALONE_FROM:
                return "begin"
            if beside:
                return "wait"
            self._runs, self._alone_until = lambda: True, now + ALONE_S
            return "alone"

    def begins_alone(self, runs: Callable[[], bool]) -> None:
        """Such a task begins; ``runs`` says whether it still does."""
        self._runs = runs
