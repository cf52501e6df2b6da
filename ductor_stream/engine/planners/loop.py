"""The event loop that workflow code runs on: small, deterministic, driven by recorded events.

It has no clock, selector or thread. Its time is the ``now`` of the event being applied, its timers are told to a sink
that makes them durable, and it runs what is ready until nothing is: one event, one `WorkflowLoop.run_ready`. The order
in which callbacks run is the order in which they were scheduled, nothing else.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Generator, Iterator
from contextvars import Context
from typing import Any, Final, TypeVar

from ductor_stream.engine.planners import asyncio_order, dropping, outside
from ductor_stream.engine.planners.outside import NoOutsideWorld, OutsideWorldError
from ductor_stream.engine.planners.running import MIN_SWEEP, LoopDropped
from ductor_stream.engine.planners.tasks import WorkflowFuture, WorkflowTask
from ductor_stream.engine.planners.timers import TimedLoop, TimerSink, WorkflowTimer

__all__ = [
    "LoopDropped",
    "LoopOverrun",
    "OutsideWorldError",
    "TimerSink",
    "WorkflowFuture",
    "WorkflowLoop",
    "WorkflowTask",
    "WorkflowTimer",
]

T = TypeVar("T")

# One event may make a run create all its 200,000 nodes (R10's hard limit) at about 5 callbacks each; at about a
# microsecond per callback a workflow that never waits is caught within a second or two.
MAX_CALLBACKS: Final = 1_000_000

asyncio_order.install()
outside.install()


class LoopOverrun(RuntimeError):
    """The workflow ran too many callbacks without waiting for an event (``while True: await asyncio.sleep(0)``)."""


class WorkflowLoop(NoOutsideWorld, TimedLoop):
    """The loop of one run. Not bound to a thread, but used by one at a time, also inside a running event loop.

    Attributes:
        exceptions: what was given to `call_exception_handler`, the first `MAX_EXCEPTIONS`, in an order that repeats in
            replay. What the garbage collector reports is left out, since its moment does not repeat: see `unretrieved`.
    """

    def __init__(self, *, now: float, timers: TimerSink) -> None:
        """Start at ``now`` virtual seconds; durable timers are told to ``timers``."""
        super().__init__(now, timers)
        self._ordinals = 0
        self._callback_places = 0
        self._tasks: list[WorkflowTask[Any]] = []
        self._sweep_tasks_at = MIN_SWEEP

    # -- driven by the planner --------------------------------------------------------------

    def spawn_root(self, coro: Coroutine[Any, Any, T]) -> WorkflowTask[T]:
        """Make the task of the workflow function itself; its place is "".

        Its context is empty: context variables of whoever ticks the run are not part of the run.
        """
        if self._dropped:
            coro.close()
            raise LoopDropped("no run starts on a dropped loop")
        return WorkflowTask(coro, loop=self, context=Context(), place="")

    def run_ready(self, *, max_callbacks: int = MAX_CALLBACKS) -> None:
        """Run callbacks until none is ready, with this loop as the thread's running loop.

        What was the running loop before is so again afterwards, whatever happens. Raises LoopOverrun before more than
        ``max_callbacks`` callbacks have run, and a SystemExit or KeyboardInterrupt that workflow code raises; what did
        not run is then still ready. Not to be called in an ``except:`` block: what workflow code raises would be
        chained to the caller's exception.
        """
        if self._running or self._dropped:
            raise LoopDropped("the loop was dropped") if self._dropped else RuntimeError("the loop is running already")
        outer = self._enter()
        batch: Iterator[asyncio.Handle] = iter(())
        left = max_callbacks
        try:
            while self._ready:
                left -= len(self._ready)
                if left < 0:
                    raise LoopOverrun(f"more than {max_callbacks:,} callbacks without waiting for an event")
                batch, self._ready = iter(self._ready), []
                for handle in batch:
                    if not handle._cancelled:
                        handle._run()
        except BaseException:
            self._ready[:0] = batch
            raise
        finally:
            self._leave(outer)

    def unretrieved(self) -> list[WorkflowTask[Any]]:
        """Tasks that failed and whose exception nobody has looked at, in order of creation."""
        return [task for task in self._tasks if task.done() and task._log_traceback]

    def close(self) -> None:
        """Make the loop unusable; cancels nothing and runs no user code. For a run whose tasks are all done."""
        if self._running:
            raise RuntimeError("a running loop cannot be closed")
        self._dropped = True

    def abandon(self) -> int:
        """Drop the run from memory: the loop is dead, all its coroutines are closed, whatever they raise is swallowed.

        Code of the run still executes here (``finally:`` blocks), so mark whatever it can reach as dead first. Any call
        on the loop raises LoopDropped from now on. No warning, no log. Returns how many coroutines would not end;
        their memory is lost. Raises RuntimeError if the loop is running.
        """
        self.close()
        return Context().run(self._end_coroutines)  # values that user code sets must not reach the caller's context

    def _end_coroutines(self) -> int:
        outer = self._enter()
        try:
            with dropping.silence():
                live = self.live_tasks()
                unended = sum(dropping.end(task.get_coro()) for task in reversed(live))
                unended += sum(dropping.end(generator) for generator in list(self._generators))
                dropping.untie(live)
                self._ready.clear()
                self._tasks.clear()
                self._generators.clear()
                self.exceptions.clear()
                vars(self).pop("_timers", None)  # nobody is told any more, and who was told is free
        finally:
            self._leave(outer)
        return unended

    # -- callbacks and timers ---------------------------------------------------------------

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        """Run ``callback`` after all that is ready by now."""
        if context is None and not self._running:
            context = Context()  # as in spawn_root: not the caller's
        handle = asyncio.Handle(callback, args, self, context)
        if not self._dropped or not self._refused():
            self._ready.append(handle)
        return handle

    # -- futures, tasks, places -------------------------------------------------------------

    def create_future(self) -> WorkflowFuture[Any]:
        """A new future of this loop."""
        if self._dropped:
            self._refused()
        return WorkflowFuture(loop=self)

    def create_task(  # type: ignore[override]
        self,
        coro: Generator[Any, None, T] | Coroutine[Any, Any, T],
        *,
        name: str | None = None,
        context: Context | None = None,
        **options: Any,
    ) -> asyncio.Future[T]:
        """A new task, placed in the task that creates it. A `WorkflowTask`, unless the loop was dropped."""
        if self._dropped:
            coro.close()
            self._refused()
            return WorkflowFuture(loop=self)
        return WorkflowTask(coro, loop=self, name=name, context=context, **options)

    def place(self) -> str:
        """The next node id in the current task's place; outside of tasks "t1", "t2" …"""
        if self._dropped and self._refused():
            return ""
        task = asyncio.current_task(self)
        if isinstance(task, WorkflowTask):
            return task.next_place()
        self._callback_places += 1
        return f"t{self._callback_places}"

    def next_ordinal(self) -> int:
        """The next number of a task or future of this run, from 1."""
        self._ordinals += 1
        return self._ordinals

    def adopt(self, task: WorkflowTask[Any]) -> None:
        """Hold ``task`` while it is live, or failed unseen, so that the garbage collector decides nothing."""
        self._tasks.append(task)
        if len(self._tasks) > self._sweep_tasks_at:
            self._tasks = [each for each in self._tasks if not each.done() or each._log_traceback]
            self._sweep_tasks_at = max(MIN_SWEEP, 2 * len(self._tasks))

    def live_tasks(self) -> list[WorkflowTask[Any]]:
        """The tasks that are not done, in order of creation."""
        return [task for task in self._tasks if not task.done()]
