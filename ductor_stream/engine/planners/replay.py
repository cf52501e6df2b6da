"""Comparing what workflow code decides in replay with what was recorded: non-determinism is found here."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

from ductor_stream.engine.planners.outcome import user_line
from ductor_stream.engine.state import (
    AnyDecision,
    Cancelled,
    Completed,
    ContinuedAsNew,
    Failed,
    NodeCreated,
    NodeDropped,
    Patched,
    SignalPassedOver,
    SignalTaken,
    ViewSet,
)

_SHOWN = 200
"""How many bytes of an input a report shows: enough to see which call it is."""


class Divergence:
    """The recorded decisions of one event, and the first difference from them."""

    __slots__ = ("expected", "problem")

    def __init__(self, expected: Sequence[AnyDecision]) -> None:
        self.expected = expected
        self.problem = ""

    def compare(self, index: int, decision: AnyDecision, place: Callable[[], str]) -> None:
        """Note the first decision that is not the recorded one, with the user's line.

        ``place`` stands in where the decision is made in a task of its own, with no user code above it.
        """
        if self.problem:
            return
        if index >= len(self.expected):
            recorded = "nothing"
        elif same(self.expected[index], decision):
            return
        else:
            recorded = told(self.expected[index])
        line = user_line(sys._getframe(1)) or place()
        self.problem = f"history has {recorded}; this code has {told(decision)}" + (f" at {line}" if line else "")

    def next_is(self, index: int, decision: AnyDecision) -> bool:
        """Whether history has this decision at that place."""
        return index < len(self.expected) and same(self.expected[index], decision)

    def child_id(self, index: int) -> str:
        """The run id of the child that history has at that place, or an empty string."""
        recorded = self.expected[index] if index < len(self.expected) else None
        return recorded.child.run_id if isinstance(recorded, NodeCreated) and recorded.child is not None else ""

    def left_over(self, decided: Sequence[AnyDecision], place: Callable[[], str]) -> str:
        """What history has and this code never did, or an empty string."""
        if len(decided) >= len(self.expected):
            return ""
        line = place()
        waiting = f" waits at {line}" if line else " does nothing more"
        return f"history has {told(self.expected[len(decided)])}; this code{waiting}"


def same(recorded: AnyDecision, decision: AnyDecision) -> bool:
    """Equal in kind, place, name and input. A step's options may change under open runs: the recorded ones hold."""
    if isinstance(recorded, NodeCreated) and isinstance(decision, NodeCreated):
        return (
            recorded.node_id == decision.node_id
            and recorded.kind == decision.kind
            and recorded.name == decision.name
            and recorded.input == decision.input
            and recorded.due_at == decision.due_at
            and (recorded.child and recorded.child.run_id) == (decision.child and decision.child.run_id)
        )
    return recorded == decision


def told(decision: AnyDecision) -> str:
    """One decision in words, for people."""
    match decision:
        case NodeCreated(node_id, "step", name, input):
            return f"node {node_id}: step {name} with input {_short(input)}"
        case NodeCreated(node_id, "timer", _, _, _, due_at):
            return f"node {node_id}: timer due at {due_at} ms"
        case NodeCreated(node_id, kind, name):
            return f"node {node_id}: {kind} {name}"
        case NodeDropped(node_id):
            return f"node {node_id} no longer awaited"
        case SignalTaken(signal_id, _):
            return f"signal {signal_id} taken"
        case SignalPassedOver(signal_id, _):
            return f"signal {signal_id} passed over, its payload not fitting"
        case Patched(change):
            return f"the change {change}"
        case ViewSet(view):
            return f"the view {_short(view)}"
        case ContinuedAsNew(input, _):
            return f"continue as new with {_short(input)}"
        case Completed(result):
            return f"the result {_short(result)}"
        case Failed(failure):
            return f"the failure {failure.type}: {failure.message}"
        case Cancelled():
            return "the run cancelled"


def _short(raw: bytes) -> str:
    text = raw[:_SHOWN].decode(errors="replace")
    return text + ("…" if len(raw) > _SHOWN else "")
