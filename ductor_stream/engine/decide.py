"""Applying what the planner said to the state: the same code for a live tick and for the fold of its records."""

from __future__ import annotations

from collections.abc import Sequence

from ductor_stream.engine.draft import Draft
from ductor_stream.engine.state import (
    AnyDecision,
    Cancelled,
    Completed,
    ContinuedAsNew,
    Failed,
    Held,
    Node,
    NodeCreated,
    NodeDropped,
    Parked,
    Patched,
    SignalArrived,
    SignalPassedOver,
    SignalTaken,
    ViewSet,
)


def decide(draft: Draft, decisions: Sequence[AnyDecision]) -> None:
    """Apply what the planner said, in its order."""
    header, nodes = draft.header, draft.state.nodes
    now = header.now
    for decision in decisions:
        draft.say(decision)
        match decision:
            case NodeCreated(node_id, kind, name, input, options, due_at, child):
                if kind == "step":
                    draft.dispatch(Node(node_id, kind, name, "dispatched", now, input, options, dispatched_at=now))
                elif child is not None:
                    draft.start_child(Node(node_id, kind, name, "waiting", now, input, child=child))
                else:
                    draft.put(Node(node_id, kind, name, "waiting", now, due_at=due_at))
            case NodeDropped(node_id):
                # Not there: its result came while the run was held up, and another one that came before won the race.
                if node_id in nodes:
                    draft.drop(node_id, "no longer awaited")
            case SignalTaken(signal_id, taken_by) | SignalPassedOver(signal_id, taken_by):
                _take(draft.state.signals, signal_id)
                if taken_by is not None:
                    del nodes[taken_by]
            case Patched():
                pass
            case ViewSet(view):
                header.view = view
            case ContinuedAsNew():
                draft.continued = draft.continue_as_new(decision, now)
            case Completed(result):
                header.result = result
                draft.close("complete", now)
            case Failed(failure):
                draft.close("fail", now, failure=failure)
            case Cancelled():
                draft.close("cancel", now)


def _take(signals: list[SignalArrived], signal_id: str) -> None:
    """Nearly always it is the first: the others are not walked over for each."""
    for index, signal in enumerate(signals):
        if signal.signal_id == signal_id:
            del signals[index]
            return


def park(draft: Draft, parked: Parked, facts: list[Held]) -> None:
    """Suspend the run with its reason; what the planner could not take is held for other code."""
    draft.move("park")
    draft.header.parked = parked
    draft.state.held.extend(facts)
    draft.emit("run.suspended", now=draft.header.now, reason=f"{parked.code}: {parked.message}")
