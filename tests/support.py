"""What tests of every tier share: waiting for a condition, free ports, names that nobody else uses."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from typing import TypeVar

from ductor_stream.dev.ports import pick_port

_T = TypeVar("_T")
_PATIENCE = 3
"""Machines are shared: a bound says when a test has failed, not how fast the product is."""
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.001, 0.05


def until(condition: Callable[[], _T], *, within_ms: float = 10_000, what: str = "") -> _T:
    """Call ``condition`` until it gives something true, and return that.

    An AssertionError raised by ``condition`` counts as "not yet", so that it may be written with
    asserts. A failure tells what was seen last.

    Args:
        condition: looked at again and again, more slowly as time goes by (at most every 50 ms).
        within_ms: how long to go on.
        what: what is waited for, in the failure's words.

    Raises:
        AssertionError: time is up.
    """
    deadline = time.monotonic() + within_ms * _PATIENCE / 1000
    pause = _FIRST_PAUSE_S
    while True:
        try:
            seen: object = condition()
            if seen:
                return seen  # type: ignore[return-value]
        except AssertionError as error:
            seen = error
        if time.monotonic() > deadline:
            named = what or getattr(condition, "__name__", "the condition")
            raise AssertionError(f"{named} was not reached within {within_ms:g} ms; last seen: {seen!r}")
        time.sleep(pause)
        pause = min(pause * 2, _LONGEST_PAUSE_S)


def free_port() -> int:
    """A port of 127.0.0.1 on which nothing listens."""
    return pick_port()


def fresh_name(prefix: str = "t") -> str:
    """A name for a namespace, topic, group or database that no other test has (``t-1f0c9a2b``)."""
    return f"{prefix}-{secrets.token_hex(4)}"
