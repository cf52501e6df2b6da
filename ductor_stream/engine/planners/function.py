"""The planner of durable functions: drives an ``async def`` on a deterministic loop, over recorded results.

It hears one fact at a time and runs the loop to quiescence after each (protocol 16). What the
workflow newly awaits or lets go of comes out as decisions, in the order in which its code said so.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from ductor_stream.engine import values
from ductor_stream.engine.definition import ChildOptions, StepDefinition, WorkflowDefinition
from ductor_stream.engine.events import Failure
from ductor_stream.engine.ids import MAX_RUN_ID_BYTES, checked, child_id, is_next_id, next_id
from ductor_stream.engine.planners import LogLine
from ductor_stream.engine.planners.loop import LoopDropped, LoopOverrun, WorkflowLoop, WorkflowTask
from ductor_stream.engine.planners.outcome import child_error, ending, first_line, said, step_error, where
from ductor_stream.engine.planners.replay import Divergence
from ductor_stream.engine.planners.run import Run, RunInfo, continues
from ductor_stream.engine.state import (
    LATEST_MS,
    AnyDecision,
    AnyFact,
    Begun,
    Cancelled,
    CancelRequested,
    ChildDone,
    ChildFailed,
    Completed,
    ContinuedAsNew,
    Failed,
    Header,
    Held,
    NodeCreated,
    NodeDropped,
    Parked,
    Patched,
    SignalArrived,
    SignalPassedOver,
    SignalTaken,
    StepDone,
    StepFailed,
    TimerDue,
)
from ductor_stream.errors import InvalidValue, PayloadTooLarge


class FunctionLive:
    """A workflow function under way. See ``planners.Live``."""

    def __init__(self, definition: WorkflowDefinition, header: Header, reset_in: int) -> None:
        self.definition = definition
        self.info = RunInfo(
            header.run_id, header.origin or header.execution, header.workflow, header.version, header.started_at
        )
        self.loop = WorkflowLoop(now=header.started_at / 1000, timers=self)
        self.log_lines: list[LogLine] = []
        self._input = header.input
        self._reset_in = reset_in
        self._root: WorkflowTask[Any] | None = None
        self._cancel_heard = False
        self._decisions: list[AnyDecision] = []
        self._divergence: Divergence | None = None
        self._steps: dict[str, tuple[StepDefinition, asyncio.Future[Any]]] = {}
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._children: dict[str, tuple[asyncio.Future[Any], Any]] = {}
        self._patches: dict[str, bool] = {}
        self.nodes_created = 0
        self.size_bytes = 0
        """Of what the code has heard and said: the same in replay, other than bytes of records. Signals that wait are
        not heard yet: they move along, and an execution must not seem long because of them."""
        self._buffered: dict[str, deque[SignalArrived]] = {}
        self._waiting: dict[str, list[tuple[str, asyncio.Future[SignalArrived]]]] = {}

    # -- planners.Live ----------------------------------------------------------------------

    def feed(self, facts: Sequence[Held], expected: Sequence[AnyDecision] | None = None) -> list[AnyDecision] | Parked:
        self._decisions = []
        self._divergence = Divergence(expected) if expected is not None else None
        for held in facts:
            if self._root is not None and self._root.done():
                break  # it has ended on an earlier one of these facts; nobody hears the rest
            parked = self._hear(held)
            if parked is not None:
                return parked
        # From here on what is said goes nowhere: when this workflow is dropped, closing its coroutines runs
        # the user's `finally:` blocks, which must not reach decisions that are recorded (protocol 17).
        decisions, self._decisions = self._decisions, []
        if self._divergence is not None:
            problem = self._divergence.problem or self._divergence.left_over(decisions, self._places)
            if problem:
                return self._diverged(problem)
        return self._stuck() or decisions

    def _stuck(self) -> Parked | None:
        """A run that awaits nothing that can ever happen would hang in silence (R9): it is found where it begins to."""
        waiting = self._steps or self._timers or self._children or any(self._waiting.values())
        if waiting or self._root is None or self._root.done():
            return None
        line = self._places()
        message = "the workflow awaits nothing that can happen: no step, timer, signal or child"
        return Parked("stuck", message + (f" (at {line})" if line else ""), self.definition.digest)

    def abandon(self) -> None:
        self.loop.abandon()
        # It is freed now, not whenever the garbage collector comes by: owners let go of thousands a second.
        self._root = None
        for awaited in (self._steps, self._timers, self._children, self._waiting):
            awaited.clear()

    def lines(self) -> list[LogLine]:
        written, self.log_lines = self.log_lines, []
        return written

    # -- hearing ----------------------------------------------------------------------------

    def _hear(self, held: Held) -> Parked | None:
        self.loop.advance(max(held.now / 1000, self.loop.time()))
        try:
            ended: AnyDecision | Parked | None = self._deliver(held.fact)
            self.loop.run_ready()
        except LoopOverrun as error:
            return Parked("overrun", f"{error}, at {self._places()}", self.definition.digest)
        except LoopDropped:
            raise
        except (SystemExit, KeyboardInterrupt, Exception) as error:  # noqa: BLE001 - also of calling it, outside a task
            ended = ending(error, self.definition)
        if self._divergence is not None and self._divergence.problem:
            return self._diverged(self._divergence.problem)
        ended = ended or self._ended()
        if isinstance(ended, Parked):
            return ended
        if ended is not None:
            self._tell_unseen()
            self.emit(ended)
        return None

    def _tell_unseen(self) -> None:
        """Tasks that failed and were never looked at, which asyncio would log: the run has ended without a word of them."""
        if self.replaying:
            return
        for task in self.loop.unretrieved():
            error = task.exception()
            said_of = f"{type(error).__name__}: {said(error)}" if error is not None else ""
            self.log_lines.append(
                ("error", "a task failed and nobody looked", {"task": task.get_name(), "error": said_of})
            )

    def _deliver(self, fact: AnyFact) -> Failed | None:
        """Tell one fact. What is told late, after a pause, may be of a node that was dropped on an earlier fact."""
        match fact:
            case StepDone(node_id, output):
                self.size_bytes += len(output)
                if step := self._steps.pop(node_id, None):
                    self._resolve(step[1], output, step[0].output_type, step[0].value_of)
            case TimerDue(node_id):
                self.loop.fire(self._timers.pop(node_id))
            case SignalArrived():
                self._signal(fact)
            case StepFailed(node_id, failure, attempts):
                if step := self._steps.pop(node_id, None):
                    step[1].set_exception(step_error(failure, attempts))
            case ChildDone(node_id, result):
                self.size_bytes += len(result)
                if child := self._children.pop(node_id, None):
                    self._resolve(child[0], result, child[1])
            case ChildFailed(node_id):
                if child := self._children.pop(node_id, None):
                    child[0].set_exception(child_error(fact))
            case Begun():
                return self._begin()
            case CancelRequested(reason):
                self._cancel_heard = True
                if self._root is not None:
                    self._root.cancel(reason)
        return None

    def _begin(self) -> Failed | None:
        arguments: tuple[Any, ...] = ()
        if self.definition.takes_input:
            try:
                arguments = (values.decode(self._input, self.definition.input_type),)
            except InvalidValue as error:
                message = f"input of {self.definition.name}: {error}"
                return Failed(Failure("user", "InvalidInput", message, retryable=False))
        self._root = self.loop.spawn_root(self._whole(arguments))
        return None

    async def _whole(self, arguments: tuple[Any, ...]) -> Any:
        """The user's function, and the cleanup of generators that it broke off: durable too, so it must run here."""
        try:
            return await self.definition.function(Run(self), *arguments)
        finally:
            await self.loop.shutdown_asyncgens()

    def _ended(self) -> AnyDecision | Parked | None:
        root = self._root
        if root is None or not root.done():
            return None
        try:
            error = root.exception()
        except asyncio.CancelledError as cancelled:
            if self._cancel_heard:
                return Cancelled()
            error = cancelled
        if (asked := continues(error)) is not None:
            return ContinuedAsNew(asked.input, asked.version, self._cancel_heard)
        if error is not None:
            return ending(error, self.definition)
        try:
            name = f"result of {self.definition.name}"
            raw = values.limited(values.encode(root.result(), name), name)
            values.decode(raw, self.definition.output_type, name)
            return Completed(raw)
        except (InvalidValue, PayloadTooLarge) as problem:
            return Parked("bug", str(problem), self.definition.digest)

    def _diverged(self, problem: str) -> Parked:
        return Parked("nondeterminism", problem, self.definition.digest)

    def _places(self) -> str:
        """Where the workflow function waits; once it has ended, where it begins."""
        return where(self._root) or first_line(self.definition.function)

    def _resolve(
        self, future: asyncio.Future[Any], raw: bytes, type: Any, value_of: Callable[[Any], Any] | None = None
    ) -> None:
        try:
            found = values.decode(raw, type)
        except InvalidValue as error:
            future.set_exception(error)
        else:
            future.set_result(found if value_of is None else value_of(found))

    # -- deciding ---------------------------------------------------------------------------

    def emit(self, decision: AnyDecision) -> None:
        """Note a decision; in replay, compare it with the recorded one at its place."""
        if self._divergence is not None:
            self._divergence.compare(len(self._decisions), decision, self._places)
        self._decisions.append(decision)
        self.nodes_created += 1
        if isinstance(decision, NodeCreated):
            self.size_bytes += len(decision.input)

    @property
    def replaying(self) -> bool:
        """Whether what happens now is a repetition of recorded history."""
        return self._divergence is not None

    async def step(self, definition: StepDefinition, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Create a step node and await its result."""
        raw = values.limited(definition.bind(args, kwargs), f"input of step {definition.name}")
        node_id = self.loop.place()
        self.emit(NodeCreated(node_id, "step", definition.name, raw, definition.options))
        future = self.loop.create_future()
        self._steps[node_id] = (definition, future)
        try:
            return await future
        except asyncio.CancelledError:
            if self._steps.pop(node_id, None) is not None:
                self.emit(NodeDropped(node_id))
            raise
        finally:
            del future  # an error that it raised holds this frame: both would be left to the garbage collector

    async def child(self, name: str, raw: bytes, options: ChildOptions, output_type: Any) -> Any:
        """Create a child node and await its outcome; a detached one is started and not awaited."""
        node_id = self.loop.place()
        run_id = checked(options.run_id or self._child_id(node_id), f"run id of child {name}", MAX_RUN_ID_BYTES)
        options = msgspec.structs.replace(options, run_id=run_id)
        self.emit(NodeCreated(node_id, "child", name, raw, child=options))
        if options.detached:
            return options.run_id
        future = self.loop.create_future()
        self._children[node_id] = (future, output_type)
        try:
            return await future
        except asyncio.CancelledError:
            if self._children.pop(node_id, None) is not None:
                self.emit(NodeDropped(node_id))
            raise
        finally:
            del future  # as in `step`

    def _child_id(self, node_id: str) -> str:
        """The id of a child whose code gives it none: after a reset another one, for that begins its children anew."""
        info = self.info
        first = child_id(info.run_id, info.execution, node_id)
        recorded = self._divergence.child_id(len(self._decisions)) if self._divergence is not None else ""
        if recorded == first or is_next_id(recorded, first):
            return recorded  # as it was named then, before the reset or after it
        return next_id(first, self._reset_in) if self._reset_in else first

    def patched(self, change: str) -> bool:
        """Whether this run has the change: yes where its code first gets there now, no where history went without it."""
        known = self._patches.get(change)
        if known is None:
            decision = Patched(change)
            known = self._divergence is None or self._divergence.next_is(len(self._decisions), decision)
            self._patches[change] = known
            if known:
                self.emit(decision)
        return known

    async def wait_signal(self, name: str, type: Any) -> Any:
        """The payload of the oldest buffered signal of that name, or of the next one.

        One that does not fit its type is taken, told of in the run's log, and passed over: whoever sent it must
        not be able to block the run, nor the signals behind it.
        """
        while True:
            taken, node_id = await self._next_signal(name)
            self.size_bytes += len(taken.payload)
            passed_over = SignalPassedOver(taken.signal_id, node_id)
            try:
                found = values.decode(taken.payload, type, f"payload of {name}")
                if self._divergence is None or not self._divergence.next_is(len(self._decisions), passed_over):
                    self.emit(SignalTaken(taken.signal_id, node_id))
                    return found
                self.emit(passed_over)  # other code did, and history went on from there
            except InvalidValue as error:
                self.emit(passed_over)
                if not self.replaying:
                    fields: dict[str, object] = {"signal": name, "signal_id": taken.signal_id, "problem": str(error)}
                    self.log_lines.append(("error", "signal passed over: its payload does not fit", fields))

    async def _next_signal(self, name: str) -> tuple[SignalArrived, str | None]:
        """With the node that it was awaited at, or None where it was there already."""
        node_id = self.loop.place()
        buffered = self._buffered.get(name)
        if buffered:
            return buffered.popleft(), None
        self.emit(NodeCreated(node_id, "signal", name))
        future: asyncio.Future[SignalArrived] = self.loop.create_future()
        self._waiting.setdefault(name, []).append((node_id, future))
        try:
            taken = await future
        except asyncio.CancelledError:
            # No signal is on its way to it: whoever is given one hears of it before anything else happens.
            self._waiting[name].remove((node_id, future))
            self.emit(NodeDropped(node_id))
            raise
        return taken, node_id

    def _signal(self, signal: SignalArrived) -> None:
        waiting = self._waiting.get(signal.name)
        if waiting:
            waiting.pop(0)[1].set_result(signal)
        else:
            self._buffered.setdefault(signal.name, deque()).append(signal)

    # -- loop.TimerSink ---------------------------------------------------------------------

    def timer_created(self, handle: asyncio.TimerHandle) -> None:
        """A sleep or timeout began: a durable timer, never early (rounded up to the millisecond)."""
        node_id: str = handle.place  # type: ignore[attr-defined]
        self._timers[node_id] = handle
        # Rounded to the microsecond first: 1.1 + 0.1 must not become a millisecond more than it says.
        due_at = min(math.ceil(round(handle.when() * 1000, 3)), LATEST_MS)
        self.emit(NodeCreated(node_id, "timer", "sleep", due_at=due_at))

    def timer_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """The timer is no longer needed: its race is lost, or its block was left."""
        node_id: str = handle.place  # type: ignore[attr-defined]
        if self._timers.pop(node_id, None) is not None:
            self.emit(NodeDropped(node_id))
