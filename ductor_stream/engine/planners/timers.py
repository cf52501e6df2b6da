"""A workflow's time and timers, and who makes them durable."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from contextvars import Context
from typing import Any, Protocol

from ductor_stream.engine.planners.running import LoopDropped, RunningLoop


class WorkflowTimer(asyncio.TimerHandle):
    """A timer of a workflow; ``when()`` is its due time in virtual seconds.

    Attributes:
        place: its node id, or "" for one that is no durable timer (already due when it was set, or never due).
    """

    __slots__ = ("place",)
    _scheduled: bool  # asyncio's: here, whether the sink knows it and has neither fired nor cancelled it

    def __init__(
        self,
        when: float,
        callback: Callable[..., object],
        args: tuple[Any, ...],
        loop: asyncio.AbstractEventLoop,
        context: Context | None,
    ) -> None:
        super().__init__(when, callback, args, loop, context)
        self.place = ""


class TimerSink(Protocol):
    """Who makes the timers of a workflow durable."""

    def timer_created(self, handle: WorkflowTimer) -> None:
        """``handle`` was set, for a time after now; give it to `TimedLoop.fire` when it is due."""

    def timer_cancelled(self, handle: WorkflowTimer) -> None:
        """``handle`` was cancelled before it was due. Said at most once, never after `TimedLoop.fire`."""


class TimedLoop(RunningLoop):
    """A loop whose time is told to it, and whose timers somebody else makes come due."""

    def __init__(self, now: float, timers: TimerSink) -> None:
        super().__init__()
        self._now = now
        self._timers = timers
        self._ready: list[asyncio.Handle] = []  # not a deque: an idle one has 600 bytes, and most runs are idle

    def time(self) -> float:
        """The ``now`` of the event being applied, in seconds. Virtual: it moves only by `advance`."""
        return self._now

    def advance(self, now: float) -> None:
        """Set the time, in seconds. Raises ValueError if it would go back."""
        if not now >= self._now:
            raise ValueError(f"time would go back from {self._now!r} to {now!r}")
        self._now = now

    def fire(self, handle: asyncio.TimerHandle) -> None:
        """A durable timer came due: make its callback ready. Does nothing when it was cancelled or fired already."""
        if self._dropped:
            raise LoopDropped("a timer of a dropped loop came due")
        if isinstance(handle, WorkflowTimer) and handle._scheduled:
            handle._scheduled = False
            self._ready.append(handle)

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> WorkflowTimer:
        """`call_at`, ``delay`` seconds from now."""
        return self.call_at(self._now + delay, callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> WorkflowTimer:
        """Run ``callback`` at ``when`` virtual seconds, by a durable timer unless that is not after now.

        An infinite time never comes and needs no timer. Raises ValueError for NaN.
        """
        if math.isnan(when):
            raise ValueError("a timer at NaN seconds")
        if context is None and not self._running:
            context = Context()
        timer = WorkflowTimer(when, callback, args, self, context)
        if self._dropped and self._refused():
            return timer
        if when <= self._now:
            self._ready.append(timer)
        elif when < math.inf:
            timer.place = self.place()
            timer._scheduled = True
            self._timers.timer_created(timer)
        return timer

    def _timer_handle_cancelled(self, handle: WorkflowTimer) -> None:
        """Called by asyncio's TimerHandle.cancel()."""
        if handle._scheduled:
            handle._scheduled = False
            if not self._dropped:
                self._timers.timer_cancelled(handle)
