"""Timers of a workflow, and who makes them durable."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import Context
from typing import Any, Protocol


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
        """``handle`` was set, for a time after now; give it to `WorkflowLoop.fire` when it is due."""

    def timer_cancelled(self, handle: WorkflowTimer) -> None:
        """``handle`` was cancelled before it was due. Said at most once, never after `WorkflowLoop.fire`."""
