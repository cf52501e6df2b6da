"""``Run``: what a workflow function is given. Everything durable that it does goes through here or through asyncio."""

from __future__ import annotations

from collections.abc import Coroutine
from datetime import UTC, datetime
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple, ParamSpec, TypeVar
from uuid import UUID

if TYPE_CHECKING:
    from ductor_stream.declarations import Signal, Step
    from ductor_stream.engine.planners.function import FunctionLive

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


class RunInfo(NamedTuple):
    """Which run this is. ``started_at`` is when the execution began, milliseconds since 1970 UTC."""

    run_id: str
    execution: int
    workflow: str
    version: str
    started_at: int


class RunLog:
    """The run's log: each line is written once, when the code first gets there; replay is silent."""

    def __init__(self, live: FunctionLive) -> None:
        self._live = live

    def _write(self, level: str, message: str, fields: dict[str, object]) -> None:
        if not self._live.replaying:
            self._live.log_lines.append((level, message, fields))

    def debug(self, message: str, **fields: object) -> None:
        """A line for whoever looks closely."""
        self._write("debug", message, fields)

    def info(self, message: str, **fields: object) -> None:
        """A line worth keeping."""
        self._write("info", message, fields)

    def warning(self, message: str, **fields: object) -> None:
        """Something to look at."""
        self._write("warning", message, fields)

    def error(self, message: str, **fields: object) -> None:
        """Something went wrong."""
        self._write("error", message, fields)


class Run:
    """The run, as its workflow function sees it.

    Time, randomness and ids come from here, so that they are the same in every replay; everything that
    touches the outside world is a step. Guarantee: the function's progress is exactly-once (R6), each
    step runs at least once, with an idempotency key that is the same on every try (R7).
    """

    def __init__(self, live: FunctionLive) -> None:
        self._live = live
        self.info = live.info
        self.log = RunLog(live)
        # Seeded by the run's identity: every replay draws the same numbers (R2).
        self.random = Random(f"{live.info.run_id}/{live.info.execution}")

    def step(self, step: Step[P, R], *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R]:
        """Run a step on its queue and await its result. Nothing is dispatched until this is awaited or made a task.

        Raises StepError (StepTimeout, StepCancelled) when it failed for good; InvalidValue when an argument
        does not fit its annotation.
        """
        return self._live.step(step.definition, args, kwargs)

    def wait_signal(self, signal: Signal[T]) -> Coroutine[Any, Any, T]:
        """Await the next signal of that name: each is delivered once, in the order in which it arrived."""
        return self._live.wait_signal(signal.definition.name, signal.definition.payload_type)

    def now(self) -> datetime:
        """The time of the event being applied, UTC: the same in every replay."""
        return datetime.fromtimestamp(self._live.loop.time(), UTC)

    def uuid4(self) -> UUID:
        """A random UUID that is the same in every replay."""
        return UUID(int=self.random.getrandbits(128), version=4)
