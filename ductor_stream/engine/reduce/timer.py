"""Timers: sleeps and timeouts of workflow code, and the back-off before a retry."""

from __future__ import annotations

import msgspec

from ductor_stream.engine.draft import Draft
from ductor_stream.engine.events import TimerFired
from ductor_stream.engine.state import Held, TimerDue


def fired(draft: Draft, event: TimerFired, now: int) -> list[Held] | None:
    """A timer that is no longer awaited, or fires early by the event's own time, changes nothing."""
    node = draft.state.nodes.get(event.node_id)
    if node is None or event.execution != draft.header.execution or event.generation != node.generation:
        return None
    if node.due_at is None or now < node.due_at or draft.header.status != "running":
        return None
    if node.kind == "timer":
        del draft.state.nodes[node.node_id]
        return [Held(now, TimerDue(node.node_id))]
    draft.dispatch(msgspec.structs.replace(node, status="dispatched", due_at=None, dispatched_at=now))
    return []
