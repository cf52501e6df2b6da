"""Why is this run waiting? One sentence for every waiting state (R9), out of the run's state alone."""

from __future__ import annotations

from datetime import UTC, datetime

from ductor_stream.engine.state import Node, RunState

_SHOWN = 3
"""Nodes that a sentence names; the rest is counted."""


def waiting_for(state: RunState, now: int) -> str | None:
    """What the run waits for at ``now`` (ms), or None when it is closed."""
    header = state.header
    if state.closed:
        return None
    if header.status == "paused":
        return f"paused; {len(state.held)} event(s) held until it is resumed"
    if header.status == "suspended":
        why = f"{header.parked.code}: {header.parked.message}" if header.parked is not None else "no reason recorded"
        return f"suspended, {why}; deploy other code under version {header.version or '?'}, or resume it"
    if state.held:
        return "about to begin its next execution"
    if not state.nodes:
        return "nothing is awaited: this should not be, and the watchdog will say so"
    nodes = list(state.nodes.values())
    told = "; ".join(_about(node, now) for node in nodes[:_SHOWN])
    more = f"; and {len(nodes) - _SHOWN} more" if len(nodes) > _SHOWN else ""
    return told + more


def _about(node: Node, now: int) -> str:
    place = f"(node {node.node_id})"
    if node.kind == "signal":
        return f"signal {node.name} is missing {place}"
    if node.kind == "child":
        run_id = node.child.run_id if node.child is not None else "?"
        return f"child run {run_id} of {node.name} has not ended {place}"
    if node.kind == "timer":
        return f"timer until {_moment(node.due_at)} {place}"
    queue = node.options.queue if node.options is not None else "?"
    failure = node.last_failure
    if node.status == "backoff":
        why = f" after {failure.type}: {failure.message[:200]}" if failure is not None else ""
        if node.rejections:
            return f"no worker on {queue} knows step {node.name}; offered again at {_moment(node.due_at)} {place}"
        return f"step {node.name} backs off until {_moment(node.due_at)}, attempt {node.attempt} next{why} {place}"
    since = _moment(node.dispatched_at)
    again = ""
    if node.redrives:
        again = f", sent again at {_moment(node.sent_at)} (redrive {node.redrives}: its task was lost unread)"
    return f"step {node.name}, attempt {node.attempt}, dispatched to queue {queue} at {since}{again} {place}"


def _moment(at: int | None) -> str:
    if at is None:
        return "?"
    return datetime.fromtimestamp(at / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
