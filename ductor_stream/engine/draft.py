"""The working copy of one tick: the cloned state and what the tick has decided so far."""

from __future__ import annotations

from typing import Any, get_args

import msgspec

from ductor_stream.engine.actions import (
    Action,
    CommandChild,
    DispatchAttempt,
    EmitLifecycle,
    LifecycleType,
    Refusal,
    StartChild,
    StopAttempt,
    TellParent,
)
from ductor_stream.engine.events import (
    AnyEvent,
    AttemptFinished,
    CarriedSignal,
    ChildFinished,
    Continued,
    ContinuedInPlace,
    Failure,
    Parent,
)
from ductor_stream.engine.state import AnyDecision, ContinuedAsNew, Header, Node, RunState
from ductor_stream.engine.transitions import Trigger, moved
from ductor_stream.errors import InvariantViolation

_CLOSING: dict[Trigger, LifecycleType] = {
    "complete": "run.completed",
    "fail": "run.failed",
    "cancel": "run.cancelled",
    "terminate": "run.terminated",
    "time_out": "run.timed_out",
}

_SIGNAL_BYTES = 64
"""What a signal takes beside its payload: its id, its name, lengths."""

_RECORD_BYTES = 1_024
"""What a record costs beside its values.

Signals that nobody has taken are written again when that costs no more than all records since they were last written:
then all that is written is linear in what comes, and what a load reads of earlier executions is bounded, in bytes and in records,
by the signals that wait (32 MB at most)."""

_VALUES: dict[Any, list[str]] = {
    kind: [each.name for each in msgspec.structs.fields(kind) if each.type in (bytes, bytes | None)]
    for kind in (*get_args(AnyEvent), *get_args(AnyDecision))
}
"""Which fields of an event or decision hold values of any size. Signals that a first record holds again do not count."""


class Draft:
    """A clone of a run's state that reducers and decisions change, and the actions that follow from it.

    Dispatches and starts of child runs are kept apart from the other actions, by execution and node, so that
    a node that is created and dropped in the same tick is never sent. ``soonest`` is the earliest due time among the nodes touched here;
    ``continued`` says that the workflow has ended this execution and asks for the next one.
    """

    __slots__ = ("actions", "continued", "dispatches", "soonest", "state")

    def __init__(self, state: RunState) -> None:
        self.state = state
        self.actions: list[Action] = []
        self.dispatches: dict[tuple[int, str], DispatchAttempt | StartChild] = {}
        self.soonest: int | None = None
        self.continued: Continued | ContinuedInPlace | None = None

    @property
    def header(self) -> Header:
        """The header of the cloned state."""
        return self.state.header

    def hear(self, event: AnyEvent) -> None:
        """Count what the record of this event takes; what is decided on it comes on top (``say``)."""
        self.state.size += _RECORD_BYTES + _value_bytes(event)
        failure = event.failure if isinstance(event, AttemptFinished | ChildFinished) else None
        if failure is not None:
            self.state.size += len(failure.message) + len(failure.details or b"") + len(failure.stack or "")

    def say(self, decision: AnyDecision) -> None:
        """Count what this decision takes in its record."""
        self.state.size += _value_bytes(decision)

    def put(self, node: Node) -> None:
        """Add or replace an open node."""
        self.state.nodes[node.node_id] = node
        self.watch(node)

    def watch(self, node: Node) -> None:
        """The node may come due earlier than what was known."""
        due = deadline(node)
        if due is not None and (self.soonest is None or due < self.soonest):
            self.soonest = due

    def dispatch(self, node: Node, *, again: bool = False) -> None:
        """Add or replace a step node whose attempt is to be sent after the commit."""
        self.put(node)
        key = (self.header.execution, node.node_id)
        earlier = self.dispatches.get(key) if again else None
        if isinstance(earlier, DispatchAttempt) and earlier.node.generation == node.generation:
            again = earlier.again  # it has not gone out yet
        self.dispatches[key] = DispatchAttempt(self.header.execution, node, again)

    def start_child(self, node: Node) -> None:
        """Start the child run of this node after the commit; the node is open unless it is detached."""
        awaited = node.child is not None and not node.child.detached
        if awaited:
            self.put(node)
        # After a retry or reset, where all executions before are of this lineage: an id that the code gives is a guard, too.
        # A detached child is nobody's, so that nothing tells it from a stranger's run.
        anew = awaited and self.header.origin == 1
        self.dispatches[self.header.execution, node.node_id] = StartChild(
            self.header.execution, node, anew, self.header.since if awaited else 0
        )

    def unsent(self, node: Node) -> bool:
        """Take back what was to be sent for this node, and say whether nobody has had it yet (not even lost)."""
        taken = self.dispatches.pop((self.header.execution, node.node_id), None)
        return taken is not None and not (isinstance(taken, DispatchAttempt) and taken.again)

    def stop(self, node: Node, reason: str) -> None:
        """The attempt or child run of this node, if one is out, is no longer wanted."""
        policy = node.child.parent_close if node.child is not None else None
        if policy == "abandon" or self.unsent(node):
            return
        if node.kind == "step" and node.status == "dispatched":
            self.actions.append(StopAttempt(self.header.execution, node, reason))
        elif policy is not None:
            self.actions.append(CommandChild(self.header.execution, node, policy, reason))

    def drop(self, node_id: str, reason: str) -> None:
        """Close an open node without a result."""
        self.stop(self.state.nodes.pop(node_id), reason)

    def move(self, trigger: Trigger) -> None:
        """Change the status by the table; raises InvariantViolation where it has no such line."""
        status = moved(self.header.status, trigger)
        if status is None:
            raise InvariantViolation(f"run {self.header.run_id}: {trigger} in status {self.header.status}")
        self.header.status = status

    def emit(
        self, type: LifecycleType, *, now: int, failure: Failure | None = None, reason: str = "", about: str = ""
    ) -> None:
        """Publish a lifecycle event under the run's next number."""
        header = self.header
        header.lifecycle_seq += 1
        result = header.result if type == "run.completed" else None
        self.actions.append(
            EmitLifecycle(type, header.execution, header.lifecycle_seq, now, result, failure, reason, about)
        )

    def refuse(self, reason: Refusal, about: str, now: int) -> None:
        """Answer a start, a signal or a command that does not apply; nothing else changes."""
        self.emit("command.rejected", now=now, reason=reason, about=about)

    def tell_ended(self, about: str, now: int) -> None:
        """Answer whoever uses this run as it is: it has ended, and its end was published long ago."""
        header = self.header
        self._answer_start(about, now, header.status, header.result, header.failure)

    def tell_refused(self, about: str, now: int) -> None:
        """Answer a start that was refused before, which has been told already."""
        self._answer_start(about, now, "rejected", reason="run_exists")

    def _answer_start(
        self,
        about: str,
        now: int,
        status: str,
        result: bytes | None = None,
        failure: Failure | None = None,
        *,
        reason: str = "",
    ) -> None:
        execution, seq = self.header.execution, self.header.lifecycle_seq
        self.actions.append(
            EmitLifecycle("start.answered", execution, seq, now, result, failure, reason, about, status)
        )

    def close(
        self, trigger: Trigger, now: int, *, failure: Failure | None = None, reason: str = "", told: bool = True
    ) -> None:
        """End the execution: nothing of it is awaited or dispatched any more. The parent, if any, is ``told``."""
        self.move(trigger)
        header = self.header
        header.failure, header.parked = failure, None
        for node_id in list(self.state.nodes):
            self.drop(node_id, f"run {header.status}")
        self.state.held.clear()
        self.emit(_CLOSING[trigger], now=now, failure=failure, reason=reason)
        if told and header.parent is not None:
            self.tell_parent(header.parent, header.status)

    def tell_parent(self, parent: Parent, status: str, failure: Failure | None = None) -> None:
        """Answer the node that awaits this run: with how it ended, or why it was refused."""
        header = self.header
        result = header.result if status == "completed" else None
        failure = failure or header.failure
        told = ChildFinished(parent.execution, parent.node_id, header.run_id, status, result, failure)
        self.actions.append(TellParent(parent, header.execution, told))

    def continue_as_new(self, asked: ContinuedAsNew, now: int) -> Continued | ContinuedInPlace:
        """End this execution and begin the next: nothing is awaited any more, untaken signals move along."""
        header = self.header
        for node_id in list(self.state.nodes):
            self.drop(node_id, "run continued as new")
        self.emit("run.continued", now=now)
        signals = [CarriedSignal(s.signal_id, s.name, s.payload) for s in self.state.signals]
        said = (
            header.workflow,
            asked.version or header.version,
            asked.input,
            signals,
            header.run_due_at,
            header.context,
            header.parent,
            header.cancel_requested and not asked.cancel_heard,
        )
        span = self.state.span + self.state.size
        waiting = sum(_SIGNAL_BYTES + len(s.payload) for s in signals)
        timeout = header.run_timeout_ms
        return Continued(*said, timeout) if waiting <= span else ContinuedInPlace(*said, span, timeout)

    def all_actions(self) -> list[Action]:
        """What is to be done after the commit; dispatches last, in the order in which nodes were created."""
        return [*self.actions, *self.dispatches.values()]


def _value_bytes(said: AnyEvent | AnyDecision) -> int:
    found = 0
    for name in _VALUES[type(said)]:
        if (value := getattr(said, name)) is not None:
            found += len(value)
    return found


def deadline(node: Node, *, running: bool = True) -> int | None:
    """The earliest moment (ms) at which this node must be looked at even if nothing comes, or None.

    Where the run is not ``running``, timers do not fire and nothing is tried again; time-outs still pass.
    """
    due = node.due_at if running else None
    if node.options is None:
        return due
    if node.options.schedule_to_close_ms is not None:
        closes = node.created_at + node.options.schedule_to_close_ms
        due = closes if due is None else min(due, closes)
    if node.options.schedule_to_start_ms is not None and node.status == "dispatched":
        starts = node.dispatched_at + node.options.schedule_to_start_ms
        due = starts if due is None else min(due, starts)
    return due
