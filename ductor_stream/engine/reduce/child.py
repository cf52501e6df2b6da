"""Child runs: their outcome, told by their owner."""

from __future__ import annotations

from ductor_stream.engine.draft import Draft
from ductor_stream.engine.events import ChildFinished
from ductor_stream.engine.state import ChildDone, ChildFailed, Held


def finished(draft: Draft, event: ChildFinished, now: int) -> list[Held] | None:
    """The outcome of a child run. One that is not awaited any more, or never was, changes nothing."""
    node = draft.state.nodes.get(event.node_id)
    if node is None or node.child is None or event.execution != draft.header.execution:
        return None
    if event.child_run_id != node.child.run_id:
        return None  # of a child that a purged run of this id had left behind
    del draft.state.nodes[node.node_id]
    if event.status == "completed":
        return [Held(now, ChildDone(node.node_id, event.result or b"null"))]
    return [Held(now, ChildFailed(node.node_id, event.child_run_id, event.status, event.failure), node)]
