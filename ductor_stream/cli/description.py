"""A run's nodes, open and closed, derived from its recorded history. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

import msgspec

from ductor_stream.engine.events import (
    AttemptFinished,
    AttemptTimedOut,
    ChildFinished,
    Failure,
    Forked,
    TimerFired,
)
from ductor_stream.engine.state import (
    AnyDecision,
    Node,
    NodeCreated,
    NodeDropped,
    NodeKind,
    Record,
    RunState,
    SignalPassedOver,
    SignalTaken,
)
from ductor_stream.store.rows import Beat


class NodeView(msgspec.Struct):
    """A node, open or closed. ``attempts`` counts the tries of a step made so far, ``queue`` is set for steps.

    ``status``: dispatched, backoff, waiting while open; then completed, failed, fired, received or dropped.
    ``worker`` runs the current attempt, where it was heard of. ``child`` is the run id of a child run.
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
    worker: str | None = None
    child: str | None = None


def moment(ms: int | None) -> datetime | None:
    """Engine time as a time of day."""
    return None if ms is None else datetime.fromtimestamp(ms / 1000, UTC)


def error_text(failure: Failure) -> str:
    """A failure in one line."""
    return f"{failure.type}: {failure.message}" if failure.message else failure.type


def nodes_of(state: RunState, records: Sequence[Record], beats: Mapping[str, Beat] | None = None) -> list[NodeView]:
    """All nodes of an execution in the order of their creation.

    ``records`` are its lineage, ``state`` is what they add up to, ``beats`` by node id what was last heard of
    attempts in flight.
    """
    views: dict[str, NodeView] = {}
    for record in records:
        _hear(views, record)
        for decision in record.decisions or ():
            _decide(views, decision, record.now)
    for view in views.values():
        node = state.nodes.get(view.node_id)
        if node is not None:
            _still_open(view, node, (beats or {}).get(view.node_id))
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
        case ChildFinished() as ended if view := views.get(ended.node_id):
            view.status = ended.status
            view.error = error_text(ended.failure) if ended.failure is not None else None
        case Forked():
            for view in views.values():
                if view.kind == "step" and view.status in ("dispatched", "backoff", "failed"):
                    view.status, view.attempts = "dispatched", 0
        case _:
            pass


def _decide(views: dict[str, NodeView], decision: AnyDecision, now: int) -> None:
    match decision:
        case NodeCreated(node_id, kind, name, _, options, due_at, child):
            view = NodeView(node_id, kind, name, "dispatched" if kind == "step" else "waiting")
            view.child = child.run_id if child is not None else None
            view.queue = options.queue if options is not None and kind == "step" else None
            view.created_at, view.due_at = moment(now), moment(due_at)
            views[node_id] = view
        case NodeDropped(node_id):
            views[node_id].status = "dropped"
        case SignalTaken(_, str(node_id)):
            views[node_id].status = "received"
        case SignalPassedOver(_, str(node_id)):
            views[node_id].status = "passed over"
        case _:
            pass


def _still_open(view: NodeView, node: Node, beat: Beat | None) -> None:
    view.status, view.generation, view.due_at = node.status, node.generation, moment(node.due_at)
    if node.kind == "step":
        view.attempts = node.attempt - (node.status == "backoff")
    view.error = error_text(node.last_failure) if node.last_failure is not None else None
    if node.child is not None:
        view.child = node.child.run_id
    if beat is not None and beat.generation == node.generation and node.status == "dispatched":
        view.worker = beat.worker
