"""One attempt under way: who waits for its result, when it beats, when it is given up."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any, Protocol

import msgspec

from ductor_stream.ports import Outgoing
from ductor_stream.protocol.worker import Task
from ductor_stream.worker.context import StopFlag
from ductor_stream.worker.lane import Lane
from ductor_stream.worker.slots import Slots
from ductor_stream.worker.steps import RegisteredStep

NEVER = float("inf")

SECOND = 1.0
"""The first heartbeat comes at the latest after this, and there is at most one in this time (wire.md)."""

SHORTEST_TIMEOUT_S = 0.1
"""Heartbeat timeouts below this are treated as this: a worker that does nothing but beat helps nobody."""

CANCEL_GRACE_S = 5.0
"""How long a cancelled coroutine may clean up after its timeout before it is given up like a thread."""


class Delivery(Protocol):
    """Where the reports about one delivered task go. Called from any thread; must not block."""

    def beat(self, record: Outgoing) -> None:
        """A heartbeat (best effort)."""

    def finished(self, record: Outgoing) -> None:
        """The result; the task counts as done when the receiver has it."""


class Order(msgspec.Struct, frozen=True):
    """A task that was delivered here: it holds one of ``slots`` until it has ended."""

    task: Task
    queue: str
    slots: Slots
    delivery: Delivery


def first_beat_s(timeout_ms: int) -> float:
    """How long after its start an attempt beats for the first time, where the worker beats for it."""
    return min(SECOND, max(timeout_ms / 1000, SHORTEST_TIMEOUT_S) / 3)


_rhythm_lock = threading.Lock()
"""One for all attempts: each takes it once at most."""


class Rhythm:
    """When the next heartbeat is due (monotonic seconds). Not thread-safe: its attempt's lock guards it."""

    __slots__ = ("_automatic", "_every", "_gap", "_last", "_next", "details")

    def __init__(self, started: float, timeout_ms: int, automatic: bool) -> None:
        timeout = max(timeout_ms / 1000, SHORTEST_TIMEOUT_S)
        third = timeout / 3
        # A timeout under two seconds would lapse between beats a second apart: half of it must do then.
        self._gap = min(SECOND, timeout / 2)
        self._every = max(third, self._gap)
        self._last = -NEVER
        self._automatic = automatic
        self._next = started + first_beat_s(timeout_ms) if automatic else NEVER
        self.details: bytes | None = None

    @property
    def due(self) -> float:
        """When the next one is to be sent, ``NEVER`` if nothing is to be said."""
        return self._next

    def note(self, details: bytes | None, now: float) -> float:
        """The step says where it is: to be sent now, or a gap after the last one. Returns when."""
        self.details = details
        self._next = min(self._next, max(now, self._last + self._gap))
        return self._next

    def sent(self, now: float) -> None:
        """One was sent just now."""
        self._last = now
        self._next = now + self._every if self._automatic else NEVER


class Attempt:
    """One try of one step in this process. Fields without a lock are set before it is shared."""

    __slots__ = (
        "_give_up_at", "_rhythm", "deliveries", "fence", "first_due", "lock", "lost", "overdue", "queue", "run",
        "settled", "slots", "started", "started_ms", "step", "stop", "task",
    )  # fmt: skip

    def __init__(self, order: Order, step: RegisteredStep, started: float, started_ms: int) -> None:
        task = self.task = order.task
        self.fence = task.fence
        self.queue = order.queue
        self.slots = order.slots
        self.step = step
        self.started = started
        self.started_ms = started_ms
        self.stop = StopFlag()
        self.lock = threading.Lock()
        self.deliveries: list[Delivery] = [order.delivery]
        self._rhythm: Rhythm | None = None
        self.overdue = False
        """Its start-to-close timeout has passed."""
        self.settled = False
        """Its outcome was reported, or nobody wants it; what the step still does changes nothing."""
        self.lost = False
        """It was given up and still runs, holding its slot."""
        self.run = _run_of(step, self.lock)
        """How to interrupt it; None for a thread, which cannot be."""
        limit = task.start_to_close_ms
        self._give_up_at = NEVER if limit is None else started + limit / 1000
        self.first_due = min(started + first_beat_s(task.heartbeat_timeout_ms), self._give_up_at)
        """Nothing has to be looked after before this (monotonic seconds)."""

    @property
    def rhythm(self) -> Rhythm:
        """Its heartbeats. Made when it is first asked for: most attempts end before their first one."""
        if self._rhythm is None:
            with _rhythm_lock:
                if self._rhythm is None:
                    automatic = not self.step.own_heartbeat
                    self._rhythm = Rhythm(self.started, self.task.heartbeat_timeout_ms, automatic)
        return self._rhythm

    def request_stop(self, reason: str) -> None:
        """Ask the step to stop, and interrupt it where that can be done."""
        self.stop.set(reason)
        if self.run is not None:
            self.run.cancel()

    @property
    def due(self) -> float:
        """When this attempt has to be looked at next (monotonic seconds)."""
        return min(self.rhythm.due, self._give_up_at)

    def passed(self, now: float) -> bool:
        """Whether a time-out has passed: the first time its start-to-close, then the grace to clean up."""
        if now < self._give_up_at:
            return False
        self._give_up_at = now + CANCEL_GRACE_S if self.run is not None and not self.overdue else NEVER
        return True


def _run_of(step: RegisteredStep, lock: threading.Lock) -> AsyncRun | ProcessRun | None:
    if step.is_async:
        return AsyncRun(lock)
    return ProcessRun(lock) if step.executor == "process" else None


class ProcessRun:
    """The process of an attempt. ``cancel`` may be called from any thread, at any time."""

    __slots__ = ("_kill", "_lock", "_wanted")

    def __init__(self, lock: threading.Lock) -> None:
        self._lock = lock
        self._wanted = False
        self._kill: Callable[[], None] | None = None

    def begin(self, kill: Callable[[], None]) -> bool:
        """A process has begun it, and this ends that; False when it was cancelled before."""
        with self._lock:
            self._kill = kill
            return not self._wanted

    def end(self) -> None:
        """The process has done its part: it is not killed any more, since it may run another attempt."""
        with self._lock:
            self._kill = None

    def cancel(self) -> None:
        """Kill the process, or keep it from beginning."""
        with self._lock:
            self._wanted = True
            if self._kill is not None:
                self._kill()


class AsyncRun:
    """The coroutine of an attempt, wherever it runs. ``cancel`` may be called from any thread, at any time."""

    __slots__ = ("_lane", "_lock", "_task", "_wanted")

    def __init__(self, lock: threading.Lock) -> None:
        self._lock = lock
        self._wanted = False
        self._lane: Lane | None = None
        self._task: asyncio.Task[Any] | None = None

    def begin(self, lane: Lane) -> bool:
        """The coroutine has begun on that lane; False when it was cancelled before."""
        with self._lock:
            self._lane, self._task = lane, asyncio.current_task()
            return not self._wanted

    def end(self) -> None:
        """The user's code has ended: nothing is interrupted any more."""
        self._task = None

    def cancel(self) -> None:
        """Interrupt it, or keep it from beginning. (A task that is cancelled before it begins would never report.)"""
        with self._lock:
            self._wanted = True
            lane = self._lane
        if lane is not None:
            lane.call(self._interrupt)

    def _interrupt(self) -> None:
        if self._task is not None:
            self._task.cancel()
