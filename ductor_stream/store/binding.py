"""A batch as parts of ``commit.sql`` and their parameters, one column per field; halves of a batch for finding poison."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
from msgspec.structs import astuple

from ductor_stream.errors import InvariantViolation
from ductor_stream.ports import Batch, OpenAttempt, RunWrite
from ductor_stream.store.columns import Byteas, Column, Int2, Int4s, Int8s, Moments, Texts

Layout = tuple[tuple[str, type[Column]], ...]

_RUNS: Layout = (  # in the order of RunWrite's fields
    ("r_run_id", Texts),
    ("r_partition", Int4s),
    ("r_expected", Int8s),
    ("r_workflow", Texts),
    ("r_version", Texts),
    ("r_execution", Int4s),
    ("r_status", Texts),
    ("r_header", Byteas),
    ("r_entry", Byteas),
    ("r_epoch", Int8s),
    ("r_journal_from", Int8s),
    ("r_wake_at", Moments),
    ("r_reason", Texts),
    ("r_result", Byteas),
    ("r_error", Byteas),
    ("r_started_at", Moments),
    ("r_closed_at", Moments),
    ("r_now", Moments),
)
_STEPS: Layout = (  # runs that go on by a step: see RunWrite.header
    ("s_run_id", Texts),
    ("s_expected", Int8s),
    ("s_entry", Byteas),
    ("s_epoch", Int8s),
    ("s_wake_at", Moments),
    ("s_now", Moments),
)
_ATTEMPTS: Layout = (  # in the order of AttemptRow's fields
    ("a_run_id", Texts),
    ("a_execution", Int4s),
    ("a_node_id", Texts),
    ("a_generation", Int4s),
    ("a_phase", Texts),
    ("a_attempt", Int4s),
    ("a_step", Texts),
    ("a_queue", Texts),
    ("a_outcome", Texts),
    ("a_error", Byteas),
    ("a_worker", Texts),
    ("a_at", Moments),
)
_LATE: Layout = tuple(("l" + name[1:], column) for name, column in _ATTEMPTS)
_MESSAGES: Layout = (  # in the order of MessageRow's fields
    ("m_run_id", Texts),
    ("m_partition", Int4s),
    ("m_id", Texts),
    ("m_kind", Texts),
    ("m_name", Texts),
    ("m_body", Byteas),
    ("m_expires_at", Moments),
)
_RELEASED: Layout = (("x_run_id", Texts), ("x_kind", Texts), ("x_id", Texts))
_INBOX: Layout = (  # in the order of InboxRow's fields, but for its id, which the store gives
    ("i_partition", Int4s),
    ("i_source", Texts),
    ("i_kind", Texts),
    ("i_body", Byteas),
    ("i_not_before", Moments),
    ("i_tries", Int4s),
)
_CONSUMED: Layout = (("c_partition", Int4s), ("c_id", Int8s))
_DEFERRED: Layout = (("q_partition", Int4s), ("q_id", Int8s), ("q_not_before", Moments), ("q_tries", Int4s))
_OPENED: Layout = (  # in the order of OpenAttempt's fields
    ("o_partition", Int4s),
    ("o_run_id", Texts),
    ("o_execution", Int4s),
    ("o_node_id", Texts),
    ("o_generation", Int4s),
    ("o_token", Texts),
    ("o_heard_at", Moments),
    ("o_beat_at", Moments),
    ("o_worker", Texts),
    ("o_details", Byteas),
)
_CLOSED: Layout = (("d_partition", Int4s), ("d_run_id", Texts), ("d_execution", Int4s), ("d_node_id", Texts))
_COUNTERS: Layout = (("k_partition", Int4s), ("k_workflow", Texts), ("k_status", Texts), ("k_change", Int8s))
_PAYLOADS: Layout = (("p_id", Texts), ("p_body", Byteas))
_FENCE: Layout = (
    ("f_partition", Int4s),
    ("f_token", Texts),
    ("f_epoch", Int8s),
    ("f_previous", Texts),
    ("f_next", Texts),
    ("f_confirmed", Int8s),
    ("f_seq", Int8s),
    ("f_outbox", Byteas),
    ("f_topic_ids", Texts),
)
_PARTS: dict[str, Layout] = {
    "runs": _RUNS,
    "steps": _STEPS,
    "attempts": _ATTEMPTS,
    "late": _LATE,
    "messages": _MESSAGES,
    "released": _RELEASED,
    "inbox": _INBOX,
    "consumed": _CONSUMED,
    "deferred": _DEFERRED,
    "opened": _OPENED,
    "closed": _CLOSED,
    "counters": _COUNTERS,
    "payloads": _PAYLOADS,
}


def _spread(layout: Layout, rows: Sequence[tuple[Any, ...]]) -> dict[str, Column]:
    if not rows:
        return {name: column(()) for name, column in layout}
    columns = zip(*rows, strict=True)
    return {name: column(values) for (name, column), values in zip(layout, columns, strict=False)}


def _array(offsets: Iterable[int]) -> str:
    return "{" + ",".join(map(str, offsets)) + "}"


def _fence_rows(batch: Batch) -> list[tuple[Any, ...]]:
    return [
        (
            p.partition,
            p.token,
            p.epoch,
            _array(p.previous),
            _array(p.next),
            p.confirmed,
            p.outbox_seq if p.outbox is not None else 0,
            p.outbox,
            None if p.topic_ids is None else msgspec.json.encode(p.topic_ids).decode(),
        )
        # Sorted, so that two owners in a quarrel about several partitions lock them in the same order.
        for p in sorted(batch.partitions, key=lambda p: p.partition)
    ]


def _open_key(attempt: OpenAttempt) -> tuple[int, str, int, str]:
    return (attempt.partition, attempt.run_id, attempt.execution, attempt.node_id)


def _opened_rows(batch: Batch) -> list[tuple[Any, ...]]:
    """One row per node, the last one said; a node closed in the same batch has none (one statement cannot do both)."""
    gone = set(batch.closed_attempts)
    last = {_open_key(attempt): attempt for attempt in batch.open_attempts}
    return [astuple(attempt) for key, attempt in last.items() if key not in gone]


def _message_rows(batch: Batch) -> tuple[list[tuple[Any, ...]], list[tuple[str, str, str]]]:
    """Rows to insert and keys to release; what is buffered and released in one batch is simply applied."""
    released = set(batch.released)
    rows: list[tuple[Any, ...]] = []
    for row in batch.messages:
        key = (row.run_id, row.kind, row.id)
        if key in released:
            released.discard(key)
            row = msgspec.structs.replace(row, body=None, expires_at=None)
        rows.append(astuple(row))
    return rows, sorted(released)


def _step_row(row: RunWrite) -> tuple[Any, ...]:
    return (row.run_id, row.expected, row.entry, row.epoch, row.wake_at, row.now)


def bind(batch: Batch, ns: int) -> tuple[frozenset[str], dict[str, Any]]:
    """The parts of ``commit.sql`` that a batch has rows for, and their parameters."""
    whole = [row for row in batch.runs if row.header is not None]
    messages, released = _message_rows(batch)
    rows: dict[str, Sequence[tuple[Any, ...]]] = {
        "runs": [astuple(row) for row in whole],
        "steps": [_step_row(row) for row in batch.runs if row.header is None],
        "attempts": [astuple(row) for row in batch.attempts if row.phase != "late"],
        "late": [astuple(row) for row in batch.attempts if row.phase == "late"],
        "messages": messages,
        "released": released,
        # Stable: within a partition rows keep the order in which they were sent, and so do their ids.
        "inbox": [astuple(row) for row in sorted(batch.inbox, key=lambda row: row.partition)],
        "consumed": batch.consumed,
        "deferred": batch.deferred,
        "opened": _opened_rows(batch),
        "closed": batch.closed_attempts,
        "counters": sorted((*key, change) for key, change in batch.counters.items() if change),
        "payloads": sorted(batch.payloads),
    }
    parts = {part for part, found in rows.items() if found}
    parts.update("changed" if row.expected else "created" for row in whole)
    params = {"ns": Int2(ns), **_spread(_FENCE, _fence_rows(batch))}
    for part in parts & rows.keys():
        params.update(_spread(_PARTS[part], rows[part]))
    return frozenset(parts), params


def check_fenced(batch: Batch) -> None:
    """Raise InvariantViolation when the batch writes to a partition whose fence it does not name."""
    fenced = {p.partition for p in batch.partitions}
    if len(fenced) != len(batch.partitions):
        raise InvariantViolation("a batch names one partition twice")
    written = {row.partition for row in batch.runs}
    written.update(row.partition for row in batch.messages)
    written.update(row.partition for row in batch.open_attempts)
    written.update(partition for partition, _ in batch.consumed)
    written.update(row[0] for row in batch.deferred)
    written.update(key[0] for key in batch.closed_attempts)
    written.update(key[0] for key in batch.counters)
    if not written <= fenced:
        raise InvariantViolation(f"a batch writes to partitions {sorted(written - fenced)} without their fence")


def run_ids_of(batch: Batch) -> list[str]:
    """Every run that a batch writes anything for, sorted."""
    found = {row.run_id for row in batch.runs}
    found.update(row.run_id for row in batch.attempts)
    found.update(row.run_id for row in batch.messages)
    found.update(row.run_id for row in batch.open_attempts)
    found.update(run_id for run_id, _, _ in batch.released)
    found.update(key[1] for key in batch.closed_attempts)
    return sorted(found)


def part_of(batch: Batch, run_ids: frozenset[str]) -> Batch:
    """What a batch writes for these runs, under the same fence, without what belongs to no run."""
    return Batch(
        partitions=[msgspec.structs.replace(p, outbox=None, topic_ids=None) for p in batch.partitions],
        runs=[row for row in batch.runs if row.run_id in run_ids],
        attempts=[row for row in batch.attempts if row.run_id in run_ids],
        messages=[row for row in batch.messages if row.run_id in run_ids],
        released=[key for key in batch.released if key[0] in run_ids],
        open_attempts=[row for row in batch.open_attempts if row.run_id in run_ids],
        closed_attempts=[key for key in batch.closed_attempts if key[1] in run_ids],
    )
