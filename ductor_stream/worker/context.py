"""What a step sees of the attempt that runs it: ``current_attempt()``."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from contextvars import ContextVar
from datetime import datetime
from functools import cached_property
from typing import Any

import msgspec
import structlog

from ductor_stream.engine.ids import Fence
from ductor_stream.errors import CalledOutsideStep
from ductor_stream.telemetry.logs import get_logger

Beat = Callable[[Any], None]


class CurrentAttempt:
    """One try of one step. May be used from any thread.

    Attributes:
        run_id, execution, node_id, generation: the fence, which tells this try from all others.
        attempt: the number of the try, from 1 on.
        idempotency_key: the same on every retry and redrive of this node; hand it to the outside world.
        deadline: when this try is given up at the latest (aware UTC, by this machine's clock), or None.
    """

    def __init__(
        self,
        fence: Fence,
        attempt: int,
        idempotency_key: str,
        deadline: Callable[[], datetime | None],
        last_details: bytes,
        beat: Beat,
    ) -> None:
        self.run_id = fence.run_id
        self.execution = fence.execution
        self.node_id = fence.node_id
        self.generation = fence.generation
        self.attempt = attempt
        self.idempotency_key = idempotency_key
        self._deadline = deadline
        self._last_details = last_details
        self._beat = beat
        self._stop = _StopFlag()

    @cached_property
    def deadline(self) -> datetime | None:
        """When this try is given up at the latest, or None where there is no limit."""
        return self._deadline()

    @cached_property
    def last_details(self) -> Any:
        """The details of the last heartbeat of the try before this one, or None."""
        return msgspec.json.decode(self._last_details) if self._last_details else None

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
        self._beat(details)

    @property
    def stop_requested(self) -> bool:
        """Whether nobody wants the result any more: the run was cancelled, or the worker is about to end."""
        return self._stop.requested

    @property
    def stop_reason(self) -> str:
        """Why the attempt was asked to stop; empty while it was not."""
        return self._stop.reason

    def wait_for_stop(self, timeout: float | None = None) -> bool:
        """Wait at most ``timeout`` seconds until asked to stop; whether it was. For plain functions."""
        return self._stop.wait(timeout)

    async def stopped(self) -> None:
        """Wait until asked to stop. An async step is cancelled then by itself; this is for what it shields."""
        await self._stop.wait_async()

    def raise_if_stopped(self) -> None:
        """Raise ``asyncio.CancelledError`` when asked to stop: a plain function ends as cancelled by it."""
        if self._stop.requested:
            raise asyncio.CancelledError(self._stop.reason)

    def request_stop(self, reason: str) -> None:
        """For the executor: ask the step to stop."""
        self._stop.set(reason)


class _StopFlag:
    """A flag that threads and event loops can wait for."""

    def __init__(self) -> None:
        self.reason = ""
        self._event = threading.Event()
        self._lock = threading.Lock()
        self._wakes: set[Callable[[], object]] = set()

    @property
    def requested(self) -> bool:
        return self._event.is_set()

    def set(self, reason: str) -> None:
        with self._lock:
            if self._event.is_set():
                return
            self.reason = reason
            self._event.set()
            wakes = list(self._wakes)
        for wake in wakes:
            with suppress(RuntimeError):  # a closed loop: nobody waits there any more
                wake()

    def wait(self, timeout: float | None) -> bool:
        return self._event.wait(timeout)

    async def wait_async(self) -> None:
        loop, event = asyncio.get_running_loop(), asyncio.Event()

        def wake() -> None:
            loop.call_soon_threadsafe(event.set)

        with self._lock:
            if self._event.is_set():
                return
            self._wakes.add(wake)
        try:
            await event.wait()
        finally:
            self._wakes.discard(wake)


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
