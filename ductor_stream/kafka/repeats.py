"""One line for what every client of a process says again and again while no broker can be reached."""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Callable

SAID_AGAIN_S = 30.0
"""Clients try twenty times a second; a line each half minute tells as much."""

_MOST_KNOWN = 200
"""Different lines remembered; more than that in half a minute are not worth telling apart."""

_VARYING = re.compile(r"\[rdkafka#[^]]*\]|\[thrd:[^]]*\]|[\w.-]+:\d+/\w+: |^(consumer|producer): |\d+ ?ms|\d+ request")


class Repeats(logging.Filter):
    """Lets a line of librdkafka through once in ``SAID_AGAIN_S`` seconds, whichever client says it, with a count.

    Lines are the same if they differ in nothing but the client, its thread, its connection and times.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._guard = threading.Lock()
        self._said: dict[str, tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the record is to be seen; one that was held back before says how often."""
        text = record.getMessage()
        key, now = _VARYING.sub("", text), self._clock()
        with self._guard:
            at, held = self._said.get(key, (None, 0))
            if at is not None and now - at < SAID_AGAIN_S:
                self._said[key] = (at, held + 1)
                return False
            if len(self._said) >= _MOST_KNOWN:
                self._said.clear()
            self._said[key] = (now, 0)
        if held:
            record.msg, record.args = "%s (and %d more like it)", (text, held)
        return True


REPEATS = Repeats()
"""The one of this process: what one module has said, another need not say again."""
