"""Ending coroutines that will never be resumed, without a word and without touching another loop.

Closing a suspended coroutine runs the user's ``finally:`` blocks. That happens outside any tick, so nothing it does
may count: the caller has marked the run dead, and installs the dropped loop as the running one meanwhile.
"""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from types import FrameType
from typing import Any, NamedTuple

# Each close() takes a coroutine out of one more ``finally: await …``; deeper nesting of those than this is no program.
MAX_CLOSES = 32

# What stands between a coroutine and what it awaits, and shows it to the collector only.
_WRAPPERS = frozenset({"coroutine_wrapper", "async_generator_asend", "async_generator_athrow", "anext_awaitable"})

# Coroutines that answer every close() by awaiting again (``except BaseException: continue``). Freed, they would run user
# code once more, at a moment that the garbage collector picks, on whatever loop runs then. Kept for the process's life.
_unending: list[object] = []


class _Link(NamedTuple):
    """Something that was suspended when it was looked at, its frame, and what ends it."""

    suspended: Any
    frame: FrameType
    close: Callable[[], object] | None


# A context variable, not a module-wide flag: other threads may legitimately warn at the same time.
_dropping: ContextVar[bool] = ContextVar("ductor_stream.dropping", default=False)
_warn_unawaited = getattr(warnings, "_warn_unawaited_coroutine", None)


def _warn_unless_dropping(coroutine: Any) -> None:
    """What the interpreter calls when a coroutine dies that was never started.

    Dropping a run between ``c = part()`` and ``await c`` is no mistake of the user. Changing the warning filters
    instead would race with every other thread that does, since they are global.
    """
    if not _dropping.get() and _warn_unawaited is not None:
        _warn_unawaited(coroutine)


if _warn_unawaited is not None:
    warnings._warn_unawaited_coroutine = _warn_unless_dropping  # type: ignore[attr-defined]


@contextmanager
def silence() -> Iterator[None]:
    """Inside, coroutines of this thread may die unstarted without a warning."""
    token = _dropping.set(True)
    try:
        yield
    finally:
        _dropping.reset(token)


def end(awaited: Any) -> int:
    """Close a suspended coroutine and all that it awaits; returns 1 if it would not end (it is kept for ever).

    Always the innermost that is suspended now: closed from outside, one that awaits in its ``finally:`` would leave
    its caller with a RuntimeError, and itself suspended, to run user code when it is freed. What is awaited in a
    ``finally:`` was not there before the close, and may await again in its turn. Whatever user code raises is swallowed.
    """
    chain = list(_chain(awaited))
    frames: dict[int, _Link] = {}
    tries = MAX_CLOSES * len(chain)
    while chain:
        frames.update((id(link.suspended), link) for link in chain)
        close = next((link.close for link in reversed(chain) if link.close is not None), None)
        if close is None:
            break
        if tries == 0:
            _unending.append(awaited)
            return 1
        tries -= 1
        try:
            close()
        except BaseException:  # noqa: BLE001, S110 - code of a dead run: even SystemExit means nothing any more
            pass
        chain = list(_chain(awaited))
    for link in frames.values():
        if _frame(link.suspended) is None:
            # A stored exception ties its frame into a cycle, and the locals with it; without this they would die,
            # and warn, whenever the collector comes by.
            link.frame.clear()
    return 0


def untie(tasks: Iterable[Any]) -> None:
    """Part ended tasks from what waits for them and what they wait for, so that all are freed at once and not by the
    collector."""
    for task in tasks:
        for future in (task, task._fut_waiter):
            for callback, _ in getattr(future, "_callbacks", None) or ():
                future.remove_done_callback(callback)


def _frame(link: Any) -> FrameType | None:
    """The frame of a coroutine, generator or async generator; None when it has ended (or is none of these)."""
    for attribute in ("cr_frame", "gi_frame", "ag_frame"):
        frame: FrameType | None = getattr(link, attribute, None)
        if frame is not None:
            return frame
    return None


def _chain(awaited: Any) -> Iterator[_Link]:
    """A suspended coroutine, what it awaits, what that awaits …

    An async generator has no ``close``: it ends through what awaits it, and one that nobody awaits is freed without a
    word by its finalizer.
    """
    while True:
        throw = None
        while type(awaited).__name__ in _WRAPPERS:
            throw = getattr(awaited, "throw", None)
            awaited = next(iter(gc.get_referents(awaited)), None)
        frame = _frame(awaited)
        if frame is None:
            return
        close = getattr(awaited, "close", None)
        yield _Link(awaited, frame, partial(throw, GeneratorExit) if close is None and throw is not None else close)
        for attribute in ("cr_await", "gi_yieldfrom", "ag_await"):
            if hasattr(awaited, attribute):
                awaited = getattr(awaited, attribute)
                break
