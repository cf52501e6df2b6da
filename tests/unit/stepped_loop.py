"""A WorkflowLoop stepped by hand, and the little of a planner that its tests need."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from typing import Any, ClassVar

import pytest

from ductor_stream.engine.planners.loop import WorkflowLoop, WorkflowTask, WorkflowTimer


class SteppedLoop(WorkflowLoop):
    """Notes timers and nodes in the order in which workflow code makes them."""

    made: ClassVar[list[SteppedLoop]] = []

    def __init__(self, now: float = 100.0) -> None:
        super().__init__(now=now, timers=self)
        self.made.append(self)
        self.pending: dict[str, WorkflowTimer] = {}
        self.nodes: dict[str, asyncio.Future[Any]] = {}
        self.said: list[str] = []

    def timer_created(self, handle: WorkflowTimer) -> None:
        self.said.append(f"timer {handle.place} at {handle.when():g}")
        self.pending[handle.place] = handle

    def timer_cancelled(self, handle: WorkflowTimer) -> None:
        self.said.append(f"cancel {handle.place}")
        del self.pending[handle.place]

    async def node(self, name: str = "node") -> Any:
        """What ``run.step`` is to a workflow."""
        place = self.place()
        self.said.append(f"{name} {place}")
        future = self.nodes[place] = self.create_future()
        try:
            return await future
        finally:
            self.nodes.pop(place, None)

    def start(self, coro: Coroutine[Any, Any, Any]) -> WorkflowTask[Any]:
        """Spawn the root and run to the first quiescence."""
        root = self.spawn_root(coro)
        self.run_ready()
        return root

    def answer(self, place: str, result: Any = None) -> None:
        """One event: the node at ``place`` is done."""
        self.nodes.pop(place).set_result(result)
        self.run_ready()

    def due(self, place: str) -> None:
        """One event: the timer at ``place`` came due."""
        handle = self.pending.pop(place)
        self.advance(max(self.time(), handle.when()))
        self.fire(handle)
        self.run_ready()


@pytest.fixture(autouse=True)
def every_loop_abandoned() -> Iterator[None]:
    """Loops with live coroutines are not left to the collector, by tests no more than by planners."""
    yield
    while SteppedLoop.made:
        SteppedLoop.made.pop().abandon()
