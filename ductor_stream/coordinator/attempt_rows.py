"""The lines that a commit writes about attempts: for people and for checks, appended and never read back."""

from __future__ import annotations

import msgspec

from ductor_stream.engine.actions import DispatchAttempt
from ductor_stream.engine.events import AttemptFinished, AttemptTimedOut, Failure
from ductor_stream.engine.state import Node
from ductor_stream.ports import AttemptRow
from ductor_stream.protocol.failures import wire_error


def dispatched(run_id: str, action: DispatchAttempt, now: int) -> AttemptRow:
    """The attempt goes out with this commit."""
    node = action.node
    queue = node.options.queue if node.options is not None else ""
    return AttemptRow(
        run_id,
        action.execution,
        node.node_id,
        node.generation,
        "dispatched",
        node.attempt,
        node.name,
        queue,
        "",
        None,
        "",
        now,
    )


def error_json(failure: Failure | None) -> bytes | None:
    """A failure as it stands in Postgres: the JSON of the wire."""
    return msgspec.json.encode(wire_error(failure)) if failure is not None else None


def finished(run_id: str, node: Node, report: AttemptFinished | AttemptTimedOut, now: int) -> AttemptRow:
    """The attempt has ended: by a worker's word, or given up by its owner. ``node`` is as it was before."""
    if isinstance(report, AttemptTimedOut):
        outcome, worker = "timed_out", ""
        error = error_json(Failure(report.code, "StepTimeout", report.code.replace("_", " ")))
    else:
        outcome, worker, error = report.outcome, report.worker, error_json(report.failure)
    queue = node.options.queue if node.options is not None else ""
    return AttemptRow(
        run_id,
        report.execution,
        node.node_id,
        node.generation,
        "finished",
        node.attempt,
        node.name,
        queue,
        outcome,
        error,
        worker,
        now,
    )


def late(run_id: str, report: AttemptFinished, now: int) -> AttemptRow:
    """A result that nobody waits for any more (R8)."""
    return AttemptRow(
        run_id,
        report.execution,
        report.node_id,
        report.generation,
        "late",
        0,
        "",
        "",
        report.outcome,
        error_json(report.failure),
        report.worker,
        now,
    )
