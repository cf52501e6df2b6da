"""What the ``runs`` commands read, put together as values that tables and JSON are made from."""

from __future__ import annotations

from typing import Any

import msgspec

from ductor_stream.cli.connection import namespace_of
from ductor_stream.cli.description import moment, nodes_of
from ductor_stream.cli.history import plain
from ductor_stream.cli.surroundings import surroundings
from ductor_stream.cli.verdicts import explained
from ductor_stream.cli.waiting import why
from ductor_stream.config import Settings
from ductor_stream.engine.fork import lineage
from ductor_stream.engine.rebuild import rebuild
from ductor_stream.errors import RunNotFound
from ductor_stream.store.reader import RunReader
from ductor_stream.store.rows import AttemptLine, HistoryEntry, RunRow

_PAGE = 2_000
"""Transitions read at a time: a long history comes in pages of some megabytes, not in one answer."""


def open_reader(settings: Settings) -> RunReader:
    """A reader of the namespace that the command is about. Raises InvalidConfig, RunNotFound, StoreUnavailable."""
    return RunReader(settings.need_database(), namespace_of(settings))


def get_run(reader: RunReader, run_id: str) -> RunRow:
    """The run of that id. Raises RunNotFound."""
    row = reader.find_run(run_id)
    if row is None:
        raise RunNotFound(f"no run {run_id!r}")
    return row


def whole_history(reader: RunReader, run_id: str, after: int = 0) -> list[HistoryEntry]:
    """Every transition above ``after``, page by page."""
    found: list[HistoryEntry] = []
    while page := reader.history(run_id, after, _PAGE):
        found += page
        after = page[-1].record_version
    return found


def listed(row: RunRow) -> dict[str, Any]:
    """A run as ``runs list`` has it."""
    return {
        "run_id": row.run_id,
        "workflow": row.workflow,
        "version": row.version,
        "execution": row.execution,
        "status": row.status,
        "reason": row.reason or None,
        "record_version": row.record_version,
        "started_at": moment(row.started_at),
        "updated_at": moment(row.updated_at),
        "closed_at": moment(row.closed_at),
    }


def shown(reader: RunReader, row: RunRow, settings: Settings) -> dict[str, Any]:
    """A run as ``runs show`` has it: its row, its nodes, and what it waits for (Kafka is asked too, if it answers)."""
    records = [record for entry in whole_history(reader, row.run_id) for record in entry.records]
    own = lineage(records, row.execution)
    state = rebuild(row.run_id, own)
    beats = {beat.node_id: beat for beat in reader.beats(row) if beat.execution == row.execution}
    decided = explained(own)
    outcome = {"error": _json(row.error)} if row.error is not None else {"result": _json(row.result)}
    return {
        **listed(row),
        **outcome,
        "waiting_for": why(state, row.updated_at, surroundings(reader, row, state, beats, settings)),
        "view": _json(row.header.view),
        "parent": row.header.parent.run_id if row.header.parent is not None else None,
        "input": plain(state.header.input),
        "nodes": [
            {**msgspec.structs.asdict(node), **decided.get(node.node_id, {})} for node in nodes_of(state, own, beats)
        ],
        "attempts": [_attempt(line) for line in reader.attempts(row.run_id)],
    }


def _attempt(line: AttemptLine) -> dict[str, Any]:
    error = _json(line.error)
    return {
        "execution": line.execution,
        "node_id": line.node_id,
        "generation": line.generation,
        "attempt": line.attempt,
        "step": line.step,
        "queue": line.queue,
        "dispatched_at": moment(line.dispatched_at),
        "finished_at": moment(line.finished_at),
        "outcome": line.outcome,
        "worker": line.worker,
        "error": error,
        "late_at": moment(line.late_at),
        "late_outcome": line.late_outcome,
    }


def _json(raw: bytes | None) -> Any:
    return None if raw is None else plain(raw)
