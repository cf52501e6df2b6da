"""A run as people read it: its nodes, and what it waits for, derived from its recorded history. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

import msgspec

from ductor_stream.engine.events import AttemptFinished, AttemptTimedOut, Failure, TimerFired
from ductor_stream.engine.state import (
    AnyDecision,
    Node,
    NodeCreated,
    NodeDropped,
    NodeKind,
    Record,
    RunState,
    SignalTaken,
)
from ductor_stream.store.rows import Beat

_NAMED = 3
"""How many open nodes a sentence names before it says "and N more"."""


class NodeView(msgspec.Struct):
    """A node, open or closed. ``attempts`` counts the tries made so far, ``queue`` is set for steps.

    ``status``: dispatched, backoff, waiting while open; then completed, failed, fired, received or dropped.
    """

    node_id: str
    kind: NodeKind
    name: str
    status: str
    generation: int = 1
    attempts: int = 0
    queue: str | None = None
    created_at: datetime | None = None
    due_at: datetime | None = None
    error: str | None = None


def moment(ms: int | None) -> datetime | None:
    """Engine time as a time of day."""
    return None if ms is None else datetime.fromtimestamp(ms / 1000, UTC)


def error_text(failure: Failure) -> str:
    """A failure in one line."""
    return f"{failure.type}: {failure.message}" if failure.message else failure.type


def nodes_of(state: RunState, records: Sequence[Record]) -> list[NodeView]:
    """All nodes of the current execution in the order of their creation. ``state`` is what the records add up to."""
    views: dict[str, NodeView] = {}
    for record in records:
        if record.execution != state.header.execution:
            continue
        _hear(views, record)
        for decision in record.decisions or ():
            _decide(views, decision, record.now)
    for view in views.values():
        node = state.nodes.get(view.node_id)
        if node is not None:
            _still_open(view, node)
        elif view.status in ("dispatched", "waiting", "backoff"):
            view.status = "dropped"
    return list(views.values())


def _hear(views: Mapping[str, NodeView], record: Record) -> None:
    match record.event:
        case AttemptFinished() as report if view := views.get(report.node_id):
            view.generation = report.generation
            if report.outcome == "completed":
                view.status, view.error = "completed", None
            else:
                view.status = "failed"
                view.error = error_text(report.failure) if report.failure else report.outcome
            view.attempts += report.outcome != "rejected"
        case AttemptTimedOut() as given_up if view := views.get(given_up.node_id):
            view.generation, view.status, view.error = given_up.generation, "failed", given_up.code
            view.attempts += 1
        case TimerFired() as fired if view := views.get(fired.node_id):
            view.status = "fired" if view.kind == "timer" else "dispatched"
            view.generation = fired.generation
        case _:
            pass


def _decide(views: dict[str, NodeView], decision: AnyDecision, now: int) -> None:
    match decision:
        case NodeCreated(node_id, kind, name, _, options, due_at):
            view = NodeView(node_id, kind, name, "dispatched" if kind == "step" else "waiting")
            view.queue = options.queue if options is not None and kind == "step" else None
            view.created_at, view.due_at = moment(now), moment(due_at)
            views[node_id] = view
        case NodeDropped(node_id):
            views[node_id].status = "dropped"
        case SignalTaken(_, str(node_id)):
            views[node_id].status = "received"
        case _:
            pass


def _still_open(view: NodeView, node: Node) -> None:
    view.status, view.generation, view.due_at = node.status, node.generation, moment(node.due_at)
    view.attempts = node.attempt - (node.status == "backoff")
    view.error = error_text(node.last_failure) if node.last_failure is not None else None


def waiting_for(state: RunState, beats: Mapping[str, Beat] | None = None) -> str | None:
    """What the run waits for, as a sentence; None once it has ended.

    ``beats`` are by node id what was last heard of attempts in flight.
    """
    header = state.header
    if state.closed:
        return None
    if header.status == "paused":
        return f"`ductor-stream resume {header.run_id}`: the run is paused"
    if header.status == "suspended":
        why = f"{header.parked.code}: {header.parked.message}" if header.parked is not None else "no reason recorded"
        return f"other code under version {header.version}, or `ductor-stream resume {header.run_id}`: {why}"
    if not state.nodes:
        return "the workflow's own code, which awaits nothing that is open"
    clauses = [_clause(node, (beats or {}).get(node.node_id)) for node in list(state.nodes.values())[:_NAMED]]
    more = len(state.nodes) - len(clauses)
    return "; ".join(clauses) + (f"; and {more} more" if more else "")


def _clause(node: Node, beat: Beat | None) -> str:
    if node.kind == "signal":
        return f"signal {node.name}"
    if node.kind == "timer":
        return f"a timer until {_clock(node.due_at)}"
    queue = node.options.queue if node.options is not None else "default"
    if node.rejections:
        return f"no worker on {queue} knows step {node.name}; it is offered again at {_clock(node.due_at)}"
    if node.status == "backoff":
        told = f" after {error_text(node.last_failure)}" if node.last_failure is not None else ""
        return f"attempt {node.attempt} of step {node.name} at {_clock(node.due_at)}{told}"
    if beat is not None and beat.generation == node.generation:
        return f"step {node.name}, which runs on {beat.worker} since {_clock(beat.heard_at)} (attempt {node.attempt})"
    return f"step {node.name} on queue {queue} (attempt {node.attempt}, dispatched at {_clock(node.dispatched_at)})"


def _clock(ms: int | None) -> str:
    at = moment(ms)
    return at.isoformat(timespec="seconds").replace("+00:00", "Z") if at is not None else "an unknown time"
