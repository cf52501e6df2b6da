"""While embedded servers start: what they do is told, and a signal to stop ends everything, wherever it is."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from ductor_stream.cli.failures import INTERRUPTED
from ductor_stream.dev.process import end_everything

_END_WITHIN_S = 10.0
"""Kafka and Postgres stop in well under a second; what does not is killed, which its data survive."""


@contextmanager
def progress_told(tell: Callable[[str], None]) -> Iterator[None]:
    """Inside, the steps of a first start (jars, the JVM's cache) are told, each in a line, from whatever thread."""
    logger, handler = logging.getLogger("ductor_stream.dev"), _Told(tell)
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.setLevel(before)
        logger.removeHandler(handler)


class _Told(logging.Handler):
    def __init__(self, tell: Callable[[str], None]) -> None:
        super().__init__()
        self._tell = tell

    def emit(self, record: logging.LogRecord) -> None:
        self._tell(record.getMessage())


@contextmanager
def interruptible() -> Iterator[None]:
    """Inside, a signal to stop ends the servers and then this process. For the main thread.

    Not by an exception: a start waits in threads that nobody can interrupt, for a download or for a JVM in training.
    """
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    before = [signal.signal(number, _end_all) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


def _end_all(number: int, frame: FrameType | None) -> None:
    logging.disable()  # servers that end in the middle of their start are no news now
    end_everything(_END_WITHIN_S)
    os._exit(INTERRUPTED)
