"""Attempts: results, failures, retries, rejections, time-outs."""

from __future__ import annotations

import msgspec

from ductor_stream.engine.actions import CloseAttempt, RecordLate
from ductor_stream.engine.draft import Draft
from ductor_stream.engine.events import AttemptFinished, AttemptLost, AttemptTimedOut, Failure
from ductor_stream.engine.ids import murmur2
from ductor_stream.engine.state import Held, Node, StepDone, StepFailed

REJECTED_FIRST_MS = 1_000
REJECTED_MAXIMUM_MS = 60_000
"""A task that a worker cannot take is offered again after 1 s to 1 min (wire.md)."""


_FINAL = frozenset({"timeout_schedule_to_close", "timeout_schedule_to_start", "dispatch_lost"})
"""Another attempt would not help: its time is over, or its queue loses what is put into it."""


def finished(draft: Draft, event: AttemptFinished, now: int) -> list[Held] | None:
    """A worker's report. One whose fence is not current changes nothing (R8)."""
    node = _current(draft, event.execution, event.node_id, event.generation)
    if node is None:
        draft.actions.append(RecordLate(event))
        return None
    draft.actions.append(CloseAttempt(event.execution, node, event))
    # Decided and answered in one tick (after a replica lost its last commits): it needs no sending any more.
    draft.unsent(node)
    if event.outcome == "completed":
        del draft.state.nodes[node.node_id]
        return [Held(now, StepDone(node.node_id, event.output or b"null"))]
    failure = event.failure or Failure("user", "Unknown", "the worker gave no reason")
    if event.outcome == "rejected":
        return _offer_again(draft, node, failure, now)
    if event.outcome == "cancelled":
        failure = Failure("cancelled", "StepCancelled", failure.message, retryable=False)
    return _failed(draft, node, failure, event.details, now)


def timed_out(draft: Draft, event: AttemptTimedOut, now: int) -> list[Held] | None:
    """The owner gave the attempt up: as a failure, and whoever still runs it is told to stop."""
    node = _current(draft, event.execution, event.node_id, event.generation)
    if node is None:
        return None
    draft.actions.append(CloseAttempt(event.execution, node, event))
    draft.stop(node, event.code)
    final = event.code in _FINAL
    kind, message = "StepTimeout", f"step {node.name}: {event.code.replace('_', ' ')}"
    if event.code == "dispatch_lost":
        kind = "TaskLost"
        message = f"step {node.name}: its task was sent {node.redrives + 1} times, and each time nobody began it"
    failure = Failure(event.code, kind, message, retryable=not final)
    return _failed(draft, node, failure, event.details, now)


def lost(draft: Draft, event: AttemptLost, now: int) -> list[Held] | None:
    """Send the task once more: the same attempt, so that a worker which has it after all does no harm (R7)."""
    node = _current(draft, event.execution, event.node_id, event.generation)
    if node is None or node.status != "dispatched" or draft.header.status != "running":
        return None
    redrives = node.redrives + 1
    lost = f"the task of step {node.name}, attempt {node.attempt} (node {node.node_id}), was lost unread"
    draft.emit("run.redriven", now=now, reason=f"{lost}: sent again, redrive {redrives}")
    draft.dispatch(msgspec.structs.replace(node, redrives=redrives, sent_at=now), again=True)
    return []


def _current(draft: Draft, execution: int, node_id: str, generation: int) -> Node | None:
    node = draft.state.nodes.get(node_id)
    if node is None or node.kind != "step" or execution != draft.header.execution or generation != node.generation:
        return None
    return node


def _failed(draft: Draft, node: Node, failure: Failure, details: bytes | None, now: int) -> list[Held] | None:
    due = _retry_at(draft, node, failure, now)
    if due is None:
        del draft.state.nodes[node.node_id]
        return [Held(now, StepFailed(node.node_id, failure, node.attempt), node)]
    node = msgspec.structs.replace(node, details=details or node.details)
    draft.put(_superseded(node, failure, due, attempt=node.attempt + 1, rejections=0))
    return []


def _offer_again(draft: Draft, node: Node, failure: Failure, now: int) -> list[Held]:
    delay = min(REJECTED_MAXIMUM_MS, REJECTED_FIRST_MS << min(node.rejections, 6))
    rejections = node.rejections + 1
    draft.put(_superseded(node, failure, now + delay, attempt=node.attempt, rejections=rejections))
    return []


def _superseded(node: Node, failure: Failure, due: int, *, attempt: int, rejections: int) -> Node:
    return msgspec.structs.replace(
        node,
        status="backoff",
        due_at=due,
        generation=node.generation + 1,
        attempt=attempt,
        rejections=rejections,
        last_failure=failure,
        redrives=0,
        sent_at=0,
    )


def _retry_at(draft: Draft, node: Node, failure: Failure, now: int) -> int | None:
    """When the node is tried again (ms), or None when it has failed for good."""
    options = node.options
    if options is None or not failure.retryable or failure.type in options.retry.non_retryable:
        return None
    if node.attempt >= options.retry.max_attempts:
        return None
    if failure.retry_after_ms is not None:
        delay = max(0, failure.retry_after_ms)
    else:
        # Spread by the fence: retries of a fan-out do not come back together, yet every replay says the same.
        seed = f"{draft.header.run_id}/{draft.header.execution}/{node.node_id}/{node.generation}"
        delay = options.retry.delay_ms(node.attempt, murmur2(seed.encode()) / 2**32)
    if options.schedule_to_close_ms is not None and now + delay >= node.created_at + options.schedule_to_close_ms:
        return None
    return now + delay
