"""Slots: how many attempts of one queue may run here at a time, and how many of them are lost for good."""

from __future__ import annotations

import threading

LOST_SHARE = 4
"""More than one slot in so many lost, and the worker is to drain and exit (protocol 28)."""


class Slots:
    """A counted number of slots, used from any thread. A slot is lost while a timed-out attempt cannot be ended."""

    def __init__(self, total: int) -> None:
        self.total = total
        self._free = total
        self._lost = 0
        self._shut = False
        # The bare lock costs a fifth of its condition, and this is taken twice for each task.
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._waiting = 0

    @property
    def free(self) -> int:
        """Slots that nobody holds now."""
        return self._free

    @property
    def lost(self) -> int:
        """Slots held by attempts that were given up and still run."""
        return self._lost

    @property
    def exhausted(self) -> bool:
        """Whether over a quarter is lost, so that only a new process helps."""
        return self._lost * LOST_SHARE > self.total

    def take(self, wanted: int = 1) -> int:
        """Take at most ``wanted`` slots at once; returns how many."""
        with self._lock:
            granted = 0 if self._shut else min(wanted, self._free)
            self._free -= granted
            return granted

    def shut(self) -> None:
        """Give out none any more: the worker drains."""
        with self._lock:
            self._shut = True

    def release(self, count: int = 1) -> None:
        """Give slots back."""
        with self._lock:
            self._free += count
            if self._waiting:
                self._changed.notify()

    def lose(self) -> None:
        """A slot that is held is lost until ``recover``."""
        with self._lock:
            self._lost += 1

    def recover(self) -> None:
        """A lost slot's attempt ended after all; the slot itself is still held."""
        with self._lock:
            self._lost -= 1

    def wait_free(self, timeout: float) -> bool:
        """Wait at most ``timeout`` seconds for a free slot; whether there is one."""
        with self._lock:
            self._waiting += 1
            try:
                return self._changed.wait_for(lambda: self._free > 0, timeout)
            finally:
                self._waiting -= 1
