"""What a step sees of the attempt that runs it: ``current_attempt()``."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import Any, Protocol

import msgspec
import structlog

from ductor_stream.errors import CalledOutsideStep
from ductor_stream.protocol.worker import Task
from ductor_stream.telemetry.logs import get_logger

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Trial(Protocol):
    """What the executor knows of a try (``worker.attempt.Attempt``)."""

    task: Task
    started_ms: int
    stop: StopFlag


class CurrentAttempt:
    """One try of one step. May be used from any thread.

    Attributes:
        run_id, execution, node_id, generation: the fence, which tells this try from all others.
        attempt: the number of the try, from 1 on.
        idempotency_key: the same on every retry and redrive of this node; hand it to the outside world.
        deadline: when this try is given up at the latest (aware UTC, by this machine's clock), or None.
    """

    def __init__(self, trial: Trial, beat: Callable[[Any, Any], None]) -> None:
        self._trial = trial
        # No more than this: every attempt has one, and most steps never look at it.
        self._beat = beat

    @property
    def run_id(self) -> str:
        """The run that waits for the result."""
        return self._trial.task.fence.run_id

    @property
    def execution(self) -> int:
        """Which incarnation of the run."""
        return self._trial.task.fence.execution

    @property
    def node_id(self) -> str:
        """The node that is tried."""
        return self._trial.task.fence.node_id

    @property
    def generation(self) -> int:
        """Which try of the node, as the fence counts."""
        return self._trial.task.fence.generation

    @property
    def attempt(self) -> int:
        """The number of the try, from 1 on."""
        return self._trial.task.attempt

    @property
    def idempotency_key(self) -> str:
        """The same on every retry and redrive of this node."""
        return self._trial.task.idempotency_key

    @cached_property
    def deadline(self) -> datetime | None:
        """When this try is given up at the latest, or None where there is no limit."""
        task = self._trial.task
        limits = [] if task.start_to_close_ms is None else [self._trial.started_ms + task.start_to_close_ms]
        if task.deadline_at is not None:
            limits.append(task.deadline_at)
        return _EPOCH + timedelta(milliseconds=min(limits)) if limits else None

    @cached_property
    def last_details(self) -> Any:
        """The details of the last heartbeat of the try before this one, or None."""
        details = self._trial.task.heartbeat_details
        return msgspec.json.decode(details) if details else None

    @cached_property
    def log(self) -> structlog.stdlib.BoundLogger:
        """A logger whose lines carry run id, node id, generation and the number of the try."""
        return get_logger(
            "ductor_stream.step",
            run_id=self.run_id,
            node_id=self.node_id,
            generation=self.generation,
            attempt=self.attempt,
        )

    def heartbeat(self, details: Any = None) -> None:
        """Say that the step is alive and how far it is (best effort). The next try finds ``details`` in ``last_details``.

        At most one a second is sent; the latest details win. Raises InvalidValue where they cannot be written as
        JSON, PayloadTooLarge over 16 KiB.
        """
        self._beat(self._trial, details)

    @property
    def stop_requested(self) -> bool:
        """Whether nobody wants the result any more: the run was cancelled, or the worker is about to end."""
        return self._trial.stop.requested

    @property
    def stop_reason(self) -> str:
        """Why the attempt was asked to stop; empty while it was not."""
        return self._trial.stop.reason

    def wait_for_stop(self, timeout: float | None = None) -> bool:
        """Wait at most ``timeout`` seconds until asked to stop; whether it was. For plain functions."""
        return self._trial.stop.wait(timeout)

    async def stopped(self) -> None:
        """Wait until asked to stop. An async step is cancelled then by itself; this is for what it shields."""
        await self._trial.stop.wait_async()

    def raise_if_stopped(self) -> None:
        """Raise ``asyncio.CancelledError`` when asked to stop: a plain function ends as cancelled by it."""
        if self.stop_requested:
            raise asyncio.CancelledError(self.stop_reason)


class StopFlag:
    """A flag that threads and event loops can wait for. It costs nothing while nobody does: every attempt has one."""

    __slots__ = ("_wakes", "reason", "requested")

    def __init__(self) -> None:
        self.requested = False
        self.reason = ""
        self._wakes: list[Callable[[], object]] | None = None

    def set(self, reason: str) -> None:
        """Ask to stop; the first reason stays."""
        with _stop_lock:
            if self.requested:
                return
            self.reason = reason
            self.requested = True
            wakes, self._wakes = self._wakes, None
        for wake in wakes or ():
            with suppress(RuntimeError):  # a closed loop: nobody waits there any more
                wake()

    def wait(self, timeout: float | None) -> bool:
        """Block the thread at most ``timeout`` seconds."""
        event = threading.Event()
        with self._told(event.set):
            event.wait(timeout)
        return self.requested

    async def wait_async(self) -> None:
        """Wait on the event loop that runs."""
        loop, event = asyncio.get_running_loop(), asyncio.Event()
        with self._told(lambda: loop.call_soon_threadsafe(event.set)):
            await event.wait()

    @contextmanager
    def _told(self, wake: Callable[[], object]) -> Iterator[None]:
        with _stop_lock:
            if not self.requested:
                self._wakes = [*(self._wakes or ()), wake]
        if self.requested:
            wake()
        try:
            yield
        finally:
            with _stop_lock:
                self._wakes = [other for other in self._wakes or () if other is not wake]


_stop_lock = threading.Lock()
"""One for all flags: they are set and waited for seldom, and a lock for each attempt would cost more."""

running_attempt: ContextVar[CurrentAttempt | None] = ContextVar("ductor_stream_attempt", default=None)
"""The attempt of the step that runs in this context; set by the executor."""


def current_attempt() -> CurrentAttempt:
    """The attempt that runs the calling step. Raises CalledOutsideStep anywhere else.

    Works in async steps, in plain functions, and in what they start by ``asyncio.to_thread`` or
    ``asyncio.create_task``; a thread made by hand must be handed the object.
    """
    attempt = running_attempt.get()
    if attempt is None:
        raise CalledOutsideStep(
            "current_attempt() is for code that a step runs: there is no attempt here "
            "(in a workflow use run.info; a thread made by hand must be handed the object)"
        )
    return attempt
