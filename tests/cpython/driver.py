"""A WorkflowLoop that drives itself, for tests that were written for a loop of one's own.

It adds what CPython's tests expect of a loop and a workflow must not have: ``run_until_complete``, ``stop``, debug mode,
task factories, exception handlers. Callbacks, timers, tasks, futures and the running of them are WorkflowLoop's.
"""

from __future__ import annotations

import asyncio
import contextvars
import heapq
from asyncio import base_events, events
from collections.abc import Callable, Coroutine, Generator
from typing import Any

from ductor_stream.engine.planners.loop import LoopOverrun, WorkflowLoop, WorkflowTimer

# Turns of the loop in which nothing was ready and no timer came due, after which a test is taken to hang.
IDLE_TURNS = 1_000


class DriverLoop(WorkflowLoop):
    """Runs to the end of what it is given; its time jumps to the next timer when nothing else is to do."""

    _default_executor = None
    _exception_handler: Callable[..., object] | None = None

    def __init__(self) -> None:
        super().__init__(now=0.0, timers=self)
        self._due: list[tuple[float, int, WorkflowTimer]] = []
        self._timer_count = 0
        self._stopping = False
        self._idle_turns = 0
        self._debug = False
        self._task_factory: Callable[..., Any] | None = None

    # -- TimerSink --------------------------------------------------------------------------

    def timer_created(self, handle: WorkflowTimer) -> None:
        self._timer_count += 1
        heapq.heappush(self._due, (handle.when(), self._timer_count, handle))

    def timer_cancelled(self, handle: WorkflowTimer) -> None:
        self._due = [each for each in self._due if each[2] is not handle]
        heapq.heapify(self._due)

    # -- driving ----------------------------------------------------------------------------

    def run_forever(self) -> None:
        if self.is_closed():
            raise RuntimeError("Event loop is closed")
        if events._get_running_loop() is not None:
            raise RuntimeError("Cannot run the event loop while another loop is running")
        try:
            while True:
                self._run_once()
                if self._stopping:
                    return
        finally:
            self._stopping = False

    def run_until_complete(self, future: Any) -> Any:
        if self.is_closed():
            raise RuntimeError("Event loop is closed")
        is_ours = not asyncio.isfuture(future)
        future = asyncio.ensure_future(future, loop=self)
        if is_ours:
            future._log_destroy_pending = False  # as asyncio: nobody else can wait for it
        future.add_done_callback(self._stop_after)
        try:
            self.run_forever()
        except BaseException:
            if is_ours and future.done() and not future.cancelled():
                future.exception()  # retrieved: the one that goes up from here is the same
            raise
        finally:
            future.remove_done_callback(self._stop_after)
        if not future.done():
            raise RuntimeError("Event loop stopped before Future completed.")
        return future.result()

    def _stop_after(self, future: asyncio.Future[Any]) -> None:
        if future.cancelled() or not isinstance(future.exception(), (SystemExit, KeyboardInterrupt)):
            self.stop()

    def stop(self) -> None:
        self._stopping = True

    def _run_once(self) -> None:
        """One turn: timers that are due, then what is ready by now, not what that makes ready."""
        self._let_time_pass()
        self._idle_turns = 0 if self._ready else self._idle_turns + 1
        if self._idle_turns > IDLE_TURNS:
            raise AssertionError("nothing is ready, no timer is set: this test would wait for ever")
        try:
            self.run_ready(max_callbacks=len(self._ready))
        except LoopOverrun:
            pass  # the next turn's

    def _let_time_pass(self) -> None:
        if not self._ready and not self._stopping and self._due:
            self.advance(max(self.time(), self._due[0][0]))
        self._fire_due()

    def _fire_due(self) -> None:
        while self._due and self._due[0][0] <= self.time() + 1e-9:
            self.fire(heapq.heappop(self._due)[2])

    def close(self) -> None:
        """Drops the loop: whatever a test leaves behind must go without a warning."""
        if self.is_running():
            raise RuntimeError("Cannot close a running event loop")
        if not self.is_closed():
            self.abandon()

    def abandon(self) -> int:
        WorkflowLoop.close(self)
        return contextvars.Context().run(self._end_coroutines)

    # -- what a workflow must not have, and asyncio's tests need --------------------------------

    def call_soon(self, callback: Any, *args: Any, context: contextvars.Context | None = None) -> asyncio.Handle:
        # A workflow's callback from outside has an empty context. Everywhere else it has that of its caller.
        return super().call_soon(callback, *args, context=context or contextvars.copy_context())

    def call_at(self, when: Any, callback: Any, *args: Any, context: Any = None) -> WorkflowTimer:
        return super().call_at(when, callback, *args, context=context or contextvars.copy_context())

    def create_task(
        self,
        coro: Coroutine[Any, Any, Any] | Generator[Any, Any, Any],
        *,
        name: Any = None,
        context: Any = None,
        **kw: Any,
    ) -> Any:
        if self._task_factory is None:
            return super().create_task(coro, name=name, context=context, **kw)
        if context is not None:
            kw["context"] = context
        task = self._task_factory(self, coro, **kw)
        if name is not None:
            task.set_name(name)
        return task

    def set_task_factory(self, factory: Callable[..., Any] | None) -> None:
        self._task_factory = factory

    def get_task_factory(self) -> Any:
        return self._task_factory

    def get_debug(self) -> bool:
        return self._debug

    def set_debug(self, enabled: bool) -> None:
        self._debug = enabled

    def set_exception_handler(self, handler: Callable[..., object] | None) -> None:
        self._exception_handler = handler

    def get_exception_handler(self) -> Any:
        return self._exception_handler

    _current_handle = None
    call_exception_handler = base_events.BaseEventLoop.call_exception_handler
    default_exception_handler = base_events.BaseEventLoop.default_exception_handler

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:
        """There is none."""


class GeneratorLoop(DriverLoop):
    """What ``test_utils.TestLoop`` is: a generator hears of each timer and answers by how much the time moves on."""

    def __init__(self, gen: Callable[[], Generator[Any, Any, Any]] | None = None) -> None:
        super().__init__()
        self._check_on_close = gen is not None
        self._gen = gen() if gen is not None else iter(lambda: None, 0)
        next(self._gen)
        self._told: list[float] = []

    def advance_time(self, advance: float | None) -> None:
        if advance:
            self.advance(self.time() + advance)

    def call_at(self, when: Any, callback: Any, *args: Any, context: Any = None) -> WorkflowTimer:
        self._told.append(when)
        return super().call_at(when, callback, *args, context=context)

    def _let_time_pass(self) -> None:
        self._fire_due()

    def _run_once(self) -> None:
        super()._run_once()
        for when in self._told:
            self.advance_time(self._gen.send(when))
        self._told = []

    def close(self) -> None:
        super().close()
        if not self._check_on_close:
            return
        try:
            self._gen.send(0)
        except StopIteration:
            return
        raise AssertionError("Time generator is not finished")
