"""Tasks and futures whose order never depends on memory addresses.

asyncio keeps tasks in sets (``asyncio.wait`` returns two of them, a ``TaskGroup`` cancels out of one), and CPython
hashes a task by its address: another process iterates in another order and decides otherwise. Here a task is hashed
by its number within its run, so replay meets the same order.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Coroutine, Generator
from contextvars import Context
from typing import Any, TypeVar

T = TypeVar("T")


class OrderedLoop(asyncio.AbstractEventLoop, ABC):
    """What tasks and futures ask of the workflow's loop."""

    @abstractmethod
    def next_ordinal(self) -> int:
        """The next number of a task or future of this run, from 1."""

    @abstractmethod
    def place(self) -> str:
        """The next node id in the place of the task that runs now."""

    @abstractmethod
    def live_tasks(self) -> list[WorkflowTask[Any]]:
        """The tasks that are not done, in order of creation."""

    @abstractmethod
    def adopt(self, task: WorkflowTask[Any]) -> None:
        """Hold a new task until it is done: the garbage collector must not decide when it ends."""


class WorkflowFuture(asyncio.Future[T]):
    """A future that is hashed by when it was first hashed, not by its address.

    Numbered lazily: most futures never enter a set, and the program's order of hashing repeats in replay.
    """

    _ordinal = 0

    def __hash__(self) -> int:
        return ordinal_of(self)


def ordinal_of(future: Any) -> int:
    """The number of ``future`` within its loop, given on first use. Its loop must be an `OrderedLoop`."""
    if not future._ordinal:
        future._ordinal = future.get_loop().next_ordinal()
    ordinal: int = future._ordinal
    return ordinal


class WorkflowTask(asyncio.Task[T]):
    """A task with a place: what it awaits and the tasks it creates are numbered within it, from 1.

    Attributes:
        place: its node id, "" for the workflow function's own task, "3" for the third thing that one created, "3.1" …
    """

    __slots__ = ("_count", "_ordinal", "place")

    def __init__(
        self,
        coro: Generator[Any, None, T] | Coroutine[Any, Any, T],
        *,
        loop: asyncio.AbstractEventLoop | None = None,
        name: str | None = None,
        context: Context | None = None,
        **options: Any,
    ) -> None:
        """Like `asyncio.Task`; the loop must be an `OrderedLoop`. Of ``options``, ``place`` sets the place."""
        home = asyncio.get_running_loop() if loop is None else loop
        if not isinstance(home, OrderedLoop):
            raise TypeError(f"a workflow's task needs the workflow's loop, not {home!r}")
        place = options.pop("place", None)
        self.place: str = home.place() if place is None else place
        self._count = 0
        ordinal = home.next_ordinal()
        # asyncio files every task of the process in one weak set. Were all first tasks of 100,000 runs hashed as 1, each
        # insertion would walk through all of them; so during registration, and only then, the hash is the address.
        # An eager task runs while it is being registered: user code may hash it, so it has its number from the start.
        self._ordinal = ordinal if options.get("eager_start") else object.__hash__(self)
        given = f"task-{self.place or 'root'}" if name is None else name
        super().__init__(coro, loop=home, name=given, context=context, **options)
        self._ordinal = ordinal
        home.adopt(self)

    def __hash__(self) -> int:
        return self._ordinal

    def next_place(self) -> str:
        """The node id of the next thing that this task awaits or creates."""
        self._count += 1
        return f"{self.place}.{self._count}" if self.place else str(self._count)
