"""``Run``: what a workflow function is given. Everything durable that it does goes through here or through asyncio."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Coroutine, Iterable
from datetime import UTC, datetime
from random import Random
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, NoReturn, ParamSpec, TypedDict, TypeVar, overload
from uuid import UUID

from ductor_stream.engine import values
from ductor_stream.engine.definition import ChildOptions
from ductor_stream.engine.ids import MAX_NAME_BYTES, checked
from ductor_stream.engine.state import ViewSet
from ductor_stream.errors import StepError

if TYPE_CHECKING:
    from typing import Unpack

    from ductor_stream.declarations import OfOneItem, Signal, Step, Workflow
    from ductor_stream.engine.planners.function import FunctionLive

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
In = TypeVar("In")
Out = TypeVar("Out")
Item = TypeVar("Item")

CONTINUE_FROM = 10_000
"""Decisions in one execution from which ``should_continue`` says yes: a replay of some 30 ms."""

CONTINUE_FROM_BYTES = 8_000_000
"""Bytes of inputs, results and payloads likewise: reading them takes some 100 ms."""

_BYTES_COUNT = "should_continue: bytes"
"""The change in the history of an execution that was told yes because of its bytes."""


class RunInfo(NamedTuple):
    """Which run this is. ``started_at`` is when the execution began, milliseconds since 1970 UTC."""

    run_id: str
    execution: int
    workflow: str
    version: str
    started_at: int


class ChildArguments(TypedDict, total=False):
    """How a child run is started: see ``Run.child``."""

    run_id: str
    parent_close: Literal["cancel", "terminate", "abandon"]


class ContinueAsNew(BaseException):
    """Leaves the workflow function: this execution has ended, the next one is to begin."""

    def __init__(self, input: bytes, version: str) -> None:
        super().__init__("continue as new")
        self.input = input
        self.version = version


def continues(error: BaseException | None) -> ContinueAsNew | None:
    """The order to continue that left the function, if nothing else did: out of a TaskGroup it comes in a group."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error if isinstance(error, ContinueAsNew) else None


class Signals(AsyncIterator[T]):
    """The signals of one name, in the order of their arrival, without end."""

    def __init__(self, run: Run, signal: Signal[T]) -> None:
        self._run, self._signal = run, signal

    async def __anext__(self) -> T:
        """Await the next one."""
        return await self._run.wait_signal(self._signal)


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

    @functools.cached_property
    def random(self) -> Random:
        """Random numbers that are the same in every replay: seeded by the run's identity (R2)."""
        return Random(f"{self._live.info.run_id}/{self._live.info.execution}")

    def step(self, step: Step[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R]:
        """Run a step on its queue and await its result. Nothing is dispatched until this is awaited or made a task.

        Raises StepError (StepTimeout, StepCancelled) when it failed for good; InvalidValue when an argument
        does not fit its annotation.
        """
        return self._live.step(step.definition, args, kwargs)

    def wait_signal(self, signal: Signal[T]) -> Coroutine[Any, Any, T]:
        """Await the next signal of that name: each is delivered once, in the order in which it arrived.

        A payload that does not fit the signal's type is passed over, with a line in the run's log.
        """
        return self._live.wait_signal(signal.definition.name, signal.definition.payload_type)

    def signals(self, signal: Signal[T]) -> AsyncIterator[T]:
        """All signals of that name, one after the other: ``async for payload in run.signals(approved)``."""
        return Signals(self, signal)

    @overload
    def child(
        self,
        workflow: Workflow[None, Out],
        input: None = None,
        *,
        detach: Literal[False] = False,
        **options: Unpack[ChildArguments],
    ) -> Coroutine[Any, Any, Out]: ...
    @overload
    def child(
        self,
        workflow: Workflow[In, Out],
        input: In,
        *,
        detach: Literal[False] = False,
        **options: Unpack[ChildArguments],
    ) -> Coroutine[Any, Any, Out]: ...
    @overload
    def child(
        self,
        workflow: Workflow[None, Any],
        input: None = None,
        *,
        detach: Literal[True],
        **options: Unpack[ChildArguments],
    ) -> Coroutine[Any, Any, str]: ...
    @overload
    def child(
        self, workflow: Workflow[In, Any], input: In, *, detach: Literal[True], **options: Unpack[ChildArguments]
    ) -> Coroutine[Any, Any, str]: ...
    @overload
    def child(
        self, workflow: Workflow[None, Out], input: None = None, *, detach: bool, **options: Unpack[ChildArguments]
    ) -> Coroutine[Any, Any, Out | str]: ...
    @overload
    def child(
        self, workflow: Workflow[In, Out], input: In, *, detach: bool, **options: Unpack[ChildArguments]
    ) -> Coroutine[Any, Any, Out | str]: ...
    def child(
        self,
        workflow: Workflow[Any, Any],
        input: Any = None,
        *,
        run_id: str = "",
        parent_close: Literal["cancel", "terminate", "abandon"] = "cancel",
        detach: bool = False,
    ) -> Coroutine[Any, Any, Any]:
        """Start a child run and await its result. Its run id is made from this run's, if none is given.

        ``parent_close`` says what becomes of it when this run ends or no longer awaits it. With ``detach`` it is
        only started, is nobody's child, and its run id is returned. Raises ChildError when it ended otherwise, or
        when a run of that id exists that is not this node's child.
        """
        definition = workflow.definition
        raw = values.limited(workflow.encode_input(input), f"input of child {definition.name}")
        options = ChildOptions(run_id, definition.version, parent_close, detach)
        return self._live.child(definition.name, raw, options, definition.output_type)

    @overload
    async def map(
        self,
        step: OfOneItem[Item, R],
        items: Iterable[Item],
        *,
        max_in_flight: int | None = None,
        on_error: Literal["cancel"] = "cancel",
    ) -> list[R]: ...
    @overload
    async def map(
        self,
        step: OfOneItem[Item, R],
        items: Iterable[Item],
        *,
        max_in_flight: int | None = None,
        on_error: Literal["cancel", "collect"],
    ) -> list[R | StepError]: ...
    async def map(
        self,
        step: Any,
        items: Iterable[Any],
        *,
        max_in_flight: int | None = None,
        on_error: Literal["cancel", "collect"] = "cancel",
    ) -> list[Any]:
        """Run a step for each item, at most ``max_in_flight`` at a time (None: all); results in the order of the items.

        ``on_error``: ``cancel`` drops the rest at the first error and raises it; ``collect`` goes on and puts the
        StepError in the place of the result.
        """
        if max_in_flight is not None and max_in_flight < 1:
            raise ValueError(f"max_in_flight is {max_in_flight}: it has to be 1 or more, or None for all at once")
        pending = list(items)
        results: list[Any] = [None] * len(pending)
        queue = iter(enumerate(pending))

        async def lane() -> None:
            for place, item in queue:
                try:
                    results[place] = await self.step(step, item)
                except StepError as error:
                    if on_error == "cancel":
                        raise
                    results[place] = error

        lanes = [asyncio.ensure_future(lane()) for _ in range(min(max_in_flight or len(pending), len(pending)))]
        try:
            await asyncio.gather(*lanes)
        except BaseException:
            for one in lanes:
                one.cancel()
            await asyncio.gather(*lanes, return_exceptions=True)
            raise
        return results

    def patched(self, change: str) -> bool:
        """Whether this run takes the new branch of a change: true from where its code first gets here, false for
        a run whose history went past this place before the change was deployed. The same in every replay.
        """
        return self._live.patched(checked(change, "name of a change", MAX_NAME_BYTES))

    def should_continue(self) -> bool:
        """Whether this execution's history is long enough that the run should continue as new.

        That is from 10,000 decisions on, or 8 MB of inputs, results and payloads.
        """
        if self._live.nodes_created >= CONTINUE_FROM:
            return True
        # Recorded, since runs that began before bytes counted were told no here, and went on from that.
        return self._live.size_bytes >= CONTINUE_FROM_BYTES and self._live.patched(_BYTES_COUNT)

    def continue_as_new(self, input: Any = None, *, version: str = "") -> NoReturn:
        """End this execution and begin the next one of the same run id with that input and an empty history.

        Signals that were not taken move along. Without ``version`` the run stays on its own. Leaves the workflow
        function: call it in the function's own task. Tasks of a TaskGroup around it are cancelled first.
        """
        if version:
            checked(version, "version", MAX_NAME_BYTES)
        raise ContinueAsNew(values.limited(values.encode(input), "input"), version)

    def set_view(self, view: Any) -> None:
        """Show a value beside the run: ``runs show`` and the API have it. Any JSON; the last one counts."""
        self._live.emit(ViewSet(values.limited(values.encode(view), "view")))

    def now(self) -> datetime:
        """The time of the event being applied, UTC: the same in every replay."""
        return datetime.fromtimestamp(self._live.loop.time(), UTC)

    def uuid4(self) -> UUID:
        """A random UUID that is the same in every replay."""
        return UUID(int=self.random.getrandbits(128), version=4)
