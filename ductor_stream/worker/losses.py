"""Tasks under which workers are lost (decision 15): begun one at a time from the second loss on, given up at the fourth.

Which task ends its process, by a crash of a C library or by all of the memory, nobody can tell from outside. So each
commit of offsets says what is begun; whoever takes the partition from a worker that did not hand it over counts one
loss for that. Beginning one at a time spares those that end soon; what runs on beside such a task is blamed with it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

ALONE_FROM, GIVEN_UP_AT = 2, 4
"""Losses of workers under a task."""

ALONE_S = 1.0
"""For how long after such a task has begun nothing else of its queue begins here, unless it ends before."""


class Careful:
    """Decides about the tasks of one queue. One thread uses it."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._runs: Callable[[], bool] = lambda: False
        self._alone_until = 0.0

    def verdict(self, losses: int, *, beside: bool) -> Literal["begin", "wait", "give up"]:
        """What becomes of a task under which so many workers were lost; ``beside``: others begin in the same moment."""
        if losses >= GIVEN_UP_AT:
            return "give up"
        if self._runs() and self._monotonic() < self._alone_until:
            return "wait"
        return "wait" if losses >= ALONE_FROM and beside else "begin"

    def begins_alone(self, runs: Callable[[], bool]) -> None:
        """Such a task begins; ``runs`` says whether it still does."""
        self._runs, self._alone_until = runs, self._monotonic() + ALONE_S
