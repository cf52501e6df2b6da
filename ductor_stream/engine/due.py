"""What comes due without any message, and when. Time-outs that depend on heartbeats are not here: the owner keeps them."""

from __future__ import annotations

from ductor_stream.engine.draft import deadline
from ductor_stream.engine.events import AnyEvent, AttemptTimedOut, Proceed, RunTimedOut, TimerFired
from ductor_stream.engine.state import Node, RunState


def due_events(state: RunState, now: int) -> list[AnyEvent]:
    """What has come due by ``now`` (ms), earliest first. Time-outs of attempts that depend on heartbeats are not here."""
    header = state.header
    if state.closed:
        return []
    if header.run_due_at is not None and header.run_due_at <= now:
        return [RunTimedOut(header.execution)]
    if header.status == "running" and state.held:
        return [Proceed(header.execution)]
    due: list[tuple[int, int, AnyEvent]] = []
    for order, node in enumerate(state.nodes.values()):
        at = deadline(node, running=header.status == "running")
        if at is None or at > now:
            continue
        # A node whose time is over is not tried once more on the way out.
        event = _overdue(header.execution, node, now) or TimerFired(header.execution, node.node_id, node.generation)
        due.append((at, order, event))
    return [event for _, _, event in sorted(due, key=lambda entry: entry[:2])]


def _overdue(execution: int, node: Node, now: int) -> AttemptTimedOut | None:
    options = node.options
    if options is None:
        return None
    if options.schedule_to_close_ms is not None and node.created_at + options.schedule_to_close_ms <= now:
        return AttemptTimedOut(execution, node.node_id, node.generation, "timeout_schedule_to_close")
    if node.status == "dispatched":
        return AttemptTimedOut(execution, node.node_id, node.generation, "timeout_schedule_to_start")
    return None


def wake_at(state: RunState) -> int | None:
    """The earliest moment (ms) at which the run must be looked at even if nothing comes, or None. Linear in open nodes."""
    if state.closed:
        return None
    running = state.header.status == "running"
    if running and state.held:
        return state.header.now
    due = [at for node in state.nodes.values() if (at := deadline(node, running=running)) is not None]
    if state.header.run_due_at is not None:
        due.append(state.header.run_due_at)
    return min(due, default=None)
