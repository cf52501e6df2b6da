"""Calls into the client library that may wait for a broker that never answers: given up after a while."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

CLOSE_SECONDS = 5.0
"""Leaving a group takes milliseconds where its broker answers. Where it does not, the session ends by itself anyway,
and a process that was told to stop has other things to finish within its grace."""

_T = TypeVar("_T")


class GivenUp(Exception):
    """The call has not come back in time; it goes on in its thread, and nobody hears of its outcome."""


def within(seconds: float, call: Callable[[], _T]) -> _T:
    """What ``call`` returns or raises; GivenUp when it takes longer.

    It runs in a daemon thread, which a process that ends does not wait for. The caller waits meanwhile: callbacks
    that run within the call still have everything to themselves.
    """
    returned: list[_T] = []
    raised: list[BaseException] = []

    def run() -> None:
        try:
            returned.append(call())
        except BaseException as error:  # noqa: BLE001 - raised again by the caller
            raised.append(error)

    thread = threading.Thread(target=run, name="ductor-kafka-call", daemon=True)
    thread.start()
    thread.join(seconds)
    if raised:
        raise raised[0]
    if not returned:
        raise GivenUp(f"no answer within {seconds:g} s")
    return returned[0]
