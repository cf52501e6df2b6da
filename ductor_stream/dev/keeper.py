"""Keeps the servers of a ``DevStack`` up: one that ends by itself is started again."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable

from ductor_stream.dev.stack import DevStack
from ductor_stream.errors import DevStackError

_LOOK_EVERY_S = 0.25
_MOST_STARTS = 3
_STARTS_WITHIN_S = 60.0
"""A server that ends three times within a minute will end again: then a person has to look at its log."""


class Keeper:
    """Looks after the servers, in a thread of its own, until it is closed.

    Args:
        stack: the servers, started. Nobody else starts or stops them before ``close`` has returned.
        tell: hears one line when a server has ended, and one when it is back; from the thread.
        give_up: called once, from the thread, when one cannot be started again; ``error`` has the reason.
    """

    def __init__(self, stack: DevStack, tell: Callable[[str], None], give_up: Callable[[], None]) -> None:
        self._stack, self._tell, self._give_up = stack, tell, give_up
        self._closing = threading.Event()
        self._started: deque[float] = deque(maxlen=_MOST_STARTS)
        self.error: DevStackError | None = None
        self._thread = threading.Thread(target=self._keep, name="ductor-dev-keeper", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Look no more; waits for a start that is under way."""
        self._closing.set()
        self._thread.join()

    def _keep(self) -> None:
        while not self._closing.wait(_LOOK_EVERY_S):
            try:
                self._look()
            except DevStackError as error:
                self.error = error
                self._give_up()
                return

    def _look(self) -> None:
        ended = self._stack.ended()
        if not ended:
            return
        told = " and ".join(f"{name} has ended ({how})" for name, how in ended)
        now = time.monotonic()
        if len(self._started) == _MOST_STARTS and now - self._started[0] < _STARTS_WITHIN_S:
            raise DevStackError(f"{told}, the {_MOST_STARTS + 1}th end within a minute; logs: {self._stack.data_dir}")
        self._started.append(now)
        self._say(f"{told}: starting it again, on the same data and port")
        try:
            self._stack.revive()
        except DevStackError as error:
            raise DevStackError(f"{told} and cannot be started again: {error}") from error
        self._say(f"{' and '.join(name for name, _ in ended)} runs again")

    def _say(self, line: str) -> None:
        with contextlib.suppress(OSError):  # whoever reads along may have left
            self._tell(line)
