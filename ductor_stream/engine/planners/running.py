"""Being the running loop of a thread for a while, inside whatever loop runs there already; and being dropped.

Also keeps the async generators that workflow code starts, since who finishes them is a property of the running loop,
and what asyncio reports to the loop.
"""

from __future__ import annotations

import asyncio
import sys
from asyncio import events
from collections.abc import AsyncGenerator, Callable
from typing import Any, Final

from ductor_stream.engine.planners.tasks import OrderedLoop

# Ended generators are forgotten when there are twice as many as at the last look, but not below this number.
MIN_SWEEP: Final = 64

# Contexts of call_exception_handler kept for a report; the first ones tell what went wrong.
MAX_EXCEPTIONS: Final = 100
# After so many refusals a dropped loop answers with things that never happen (see `RunningLoop._refused`).
MAX_REFUSALS: Final = 1_000

# From 3.12 the current task can be put aside; from 3.14 it must be, since it belongs to the thread and not to a loop.
_swap_current_task: Callable[[Any, Any], Any] | None = getattr(asyncio.tasks, "_swap_current_task", None)


class LoopDropped(RuntimeError):
    """The loop's run was dropped from memory: nothing that its code still does counts."""


class RunningLoop(OrderedLoop):
    """A loop that can be put in place of the running one, and can be dropped.

    Attributes:
        exceptions: what was given to `call_exception_handler`, the first `MAX_EXCEPTIONS`, in an order that repeats in
            replay. What the garbage collector reports is left out, since its moment does not repeat.
    """

    def __init__(self) -> None:
        self.exceptions: list[dict[str, Any]] = []
        self._running = False
        self._dropped = False
        self._refusals = 0
        self._generators: list[AsyncGenerator[Any, Any]] = []
        self._sweep_generators_at = MIN_SWEEP

    def is_running(self) -> bool:
        """Whether code of the run is executing now."""
        return self._running

    def is_closed(self) -> bool:
        """Whether the loop was closed or abandoned."""
        return self._dropped

    def get_debug(self) -> bool:
        """Always False: asyncio's debug mode measures with the clock."""
        return False

    def get_task_factory(self) -> None:
        """Always None: tasks of a workflow are WorkflowTask."""

    def get_exception_handler(self) -> None:
        """Always None: see `exceptions`."""

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Keep ``context`` in `exceptions`, unless a finalizer says it: those come when the collector does."""
        message = str(context.get("message"))
        from_finalizer = message.endswith("was never retrieved") or message.startswith("Task was destroyed")
        if not (from_finalizer or self._dropped or len(self.exceptions) >= MAX_EXCEPTIONS):
            self.exceptions.append(context)

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        """The same as `call_exception_handler`."""
        self.call_exception_handler(context)

    async def shutdown_asyncgens(self) -> None:
        """Close the async generators that were not run to their end, in the order in which they were started.

        Await it when the workflow function is done: their ``finally:`` blocks may await steps.
        """
        generators, self._generators = self._generators, []
        for generator in generators:
            try:
                await generator.aclose()
            except Exception as error:  # noqa: BLE001 - as asyncio does: one failing generator keeps no other open
                message = f"an error occurred during closing of asynchronous generator {generator!r}"
                self.call_exception_handler({"message": message, "exception": error, "asyncgen": generator})

    def _enter(self) -> tuple[Any, Any, Any]:
        """Become the running loop of this thread; returns what `_leave` restores."""
        loop = events._get_running_loop()
        task = _swap_current_task(loop, None) if loop is not None and _swap_current_task is not None else None
        hooks = sys.get_asyncgen_hooks()
        self._running = True
        events._set_running_loop(self)
        sys.set_asyncgen_hooks(self._generator_started, self._generator_freed)
        return loop, task, hooks

    def _leave(self, outer: tuple[Any, Any, Any]) -> None:
        loop, task, hooks = outer
        sys.set_asyncgen_hooks(*hooks)
        events._set_running_loop(loop)
        if task is not None and _swap_current_task is not None:
            _swap_current_task(loop, task)
        self._running = False

    def _refused(self) -> bool:
        """Raise LoopDropped, `MAX_REFUSALS` times; after that return True.

        Code like ``while True: try: await …; except: pass`` would go on for ever if each call raised. What never
        happens suspends it instead, and then it can be closed.
        """
        self._refusals += 1
        if self._refusals <= MAX_REFUSALS:
            raise LoopDropped("the run was dropped from memory: nothing that its code still does counts")
        return True

    def _generator_started(self, generator: AsyncGenerator[Any, Any]) -> None:
        """Hold a started async generator: asyncio would close it whenever it is freed, at a moment not repeated."""
        self._generators.append(generator)
        if len(self._generators) > self._sweep_generators_at:
            self._generators = [each for each in self._generators if each.ag_frame is not None]  # type: ignore[attr-defined]
            self._sweep_generators_at = max(MIN_SWEEP, 2 * len(self._generators))

    def _generator_freed(self, generator: AsyncGenerator[Any, Any]) -> None:
        """A generator was freed with its run: it ends where it stands, on no loop."""
