"""The tables of ``ductor_stream`` in memory: one database that many stores share, with the commit's semantics.

A commit checks everything first and then writes, which is all that a transaction is where nothing runs in between.
The checks and their order are those of ``store/commit.py`` and ``store/sql/queries/commit.sql``.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection
from operator import attrgetter
from typing import Any

import msgspec

from ductor_stream.engine.state import RunState
from ductor_stream.errors import (
    DuctorError,
    InvariantViolation,
    OwnershipLost,
    PoisonedRun,
    RecordVersionConflict,
    TopicsNotReady,
)
from ductor_stream.ports import (
    INBOUND,
    UNREAD,
    AttemptRow,
    Batch,
    Folded,
    InboxRow,
    MessageRow,
    Namespace,
    OpenAttempt,
    PartitionAdvance,
    RunWrite,
)

_Getter = Callable[[Any], tuple[Any, ...]]
_LARGEST_INT = 2**31 - 1
_LATEST_MS = 9_224_318_015_999_999
"""The last moment that Postgres has."""


class PartitionRow(msgspec.Struct):
    """A row of ``eec_partition``."""

    token: str
    epoch: int
    offsets: tuple[int, ...]
    topic_ids: dict[str, str] = {}
    outbox_seq: int = 0
    clean: bool = True
    suspect: str | None = None
    deaths: int = 0


class Transition(msgspec.Struct, frozen=True):
    """A row of ``eec_workflow_transition``."""

    record_version: int
    execution: int
    epoch: int
    txid: int
    at: int
    records: bytes


class Database:
    """One namespace's rows. Plain dictionaries, so that tests may look at everything."""

    def __init__(self, namespace: Namespace, now: Callable[[], int]) -> None:
        self.namespace, self.now = namespace, now
        self.partitions: dict[int, PartitionRow] = {}
        self.runs: dict[str, RunWrite] = {}
        self.transitions: dict[str, list[Transition]] = {}
        self.summaries: dict[str, Folded] = {}
        self.attempts: dict[tuple[str, int, str, int, str], AttemptRow] = {}
        self.messages: dict[tuple[str, str, str], MessageRow] = {}
        self.inbox: dict[int, dict[int, InboxRow]] = {}
        self.outbox: dict[int, dict[int, bytes]] = {}
        self.open_attempts: dict[tuple[int, str, int, str], OpenAttempt] = {}
        self.counters: dict[tuple[int, str, str], int] = {}
        self.payloads: dict[str, bytes] = {}
        self.declared: set[tuple[str, str, str]] = set()
        self.on_committing: list[Callable[[Database, Batch, int], None]] = []
        """Called with each batch that is about to land, and its number: the rows are still as they were."""
        self.on_committed: list[Callable[[Database, Batch, int], None]] = []
        """Likewise, when it has landed."""
        self.on_lost: list[Callable[[Batch, Collection[str]], None]] = []
        """Called with a batch that has not landed, and the runs that have lost their version check."""
        self.on_took: list[Callable[[int, str, int], None]] = []
        """Called with a partition, and the token and epoch of its new owner."""
        self.rebuilt: dict[str, tuple[RunWrite, RunState | None]] = {}
        """Of checkers: what was rebuilt of a run, by the row that it had then."""
        self._txid = 0
        self._inbox_id = 0

    # -- partitions -------------------------------------------------------------------------

    def take(self, partition: int, token: str) -> tuple[PartitionRow, PartitionRow]:
        """Raise the epoch under a new token; the row, and a copy of how its last owner left it."""
        row = self.partitions.get(partition)
        if row is None:
            row = self.partitions[partition] = PartitionRow(token, 0, (UNREAD,) * len(INBOUND))
        before = msgspec.structs.replace(row)
        row.clean = False
        row.token, row.epoch = token, row.epoch + 1
        for took in self.on_took:
            took(partition, token, row.epoch)
        return row, before

    def version_of(self, run_id: str) -> int:
        """The run's record_version, 0 where there is none."""
        run = self.runs.get(run_id)
        return run.expected + 1 if run is not None else 0

    def waiting(self, run_id: str) -> list[MessageRow]:
        """Messages that are buffered for a run, in order of arrival."""
        return [row for key, row in self.messages.items() if key[0] == run_id and row.body is not None]

    def fold(self, fence: tuple[int, str, int], run_id: str, before: int, folded: Folded) -> bool:
        """See ``RunStore.fold``."""
        row, run = self.partitions.get(fence[0]), self.runs.get(run_id)
        if row is None or (row.token, row.epoch) != fence[1:] or run is None or folded.upto >= run.journal_from:
            return False
        if self.summaries.get(run_id, Folded()).upto != before:
            return False
        self.summaries[run_id] = folded
        self.transitions[run_id] = [t for t in self.transitions[run_id] if t.record_version > folded.upto]
        return True

    def drop_attempts(self, fence: tuple[int, str, int], run_id: str, execution: int, limit: int) -> int:
        """See ``RunStore.drop_attempts``."""
        row = self.partitions.get(fence[0])
        if row is None or (row.token, row.epoch) != fence[1:]:
            return 0
        doomed = sorted(key for key in self.attempts if key[0] == run_id and key[1] < execution)[-limit:]
        for key in doomed:
            del self.attempts[key]
        return len(doomed)

    # -- the commit -------------------------------------------------------------------------

    def commit(self, batch: Batch) -> int:
        """Write the batch or nothing. Raises as ``RunStore.commit`` does when nothing lands."""
        found = self.refusal(batch)
        if isinstance(found, RecordVersionConflict):
            self.lost(batch, found.run_ids)
        if found is not None:
            raise found
        self._txid += 1
        for committing in self.on_committing:
            committing(self, batch, self._txid)
        self._write(batch, self._txid)
        for committed in self.on_committed:
            committed(self, batch, self._txid)
        return self.now()

    def lost(self, batch: Batch, run_ids: Collection[str]) -> None:
        """These runs have lost their version check."""
        for lost in self.on_lost:
            lost(batch, run_ids)

    def refusal(self, batch: Batch) -> DuctorError | None:
        """Why the batch may not land, in the order in which Postgres would say so."""
        _check_fenced(batch)
        if foreign := self._foreign(batch) or self._consumed_twice(batch):
            return OwnershipLost(frozenset(foreign))
        if moved := self._moved(batch):
            return RecordVersionConflict(frozenset(moved))
        if poison := _poisoned(batch):
            return PoisonedRun(*poison)
        return self._impossible(batch)

    def _foreign(self, batch: Batch) -> set[int]:
        return {advance.partition for advance in batch.partitions if not self._held(advance)}

    def _held(self, advance: PartitionAdvance) -> bool:
        row = self.partitions.get(advance.partition)
        ours = (advance.token, advance.epoch, tuple(advance.previous))
        return row is not None and (row.token, row.epoch, row.offsets) == ours

    def _consumed_twice(self, batch: Batch) -> set[int]:
        taken = [*batch.consumed, *(row[:2] for row in batch.deferred)]
        return {partition for partition, id in taken if id not in self.inbox.get(partition, {})}

    def _moved(self, batch: Batch) -> set[str]:
        moved = {run.run_id for run in batch.runs if self.version_of(run.run_id) != run.expected}
        noted = {(row.run_id, row.kind, row.id) for row in batch.messages}
        moved |= {key[0] for key in noted if key in self.messages}
        for key in set(batch.released) - noted:
            known = self.messages.get(key)
            if known is None or known.body is None:
                moved.add(key[0])
        return moved

    def _impossible(self, batch: Batch) -> DuctorError | None:
        seen: set[tuple[str, int, str, int, str]] = set()
        for row in batch.attempts:
            key = _attempt_key(row)
            if row.phase != "late" and (key in self.attempts or key in seen):
                return InvariantViolation(f"a second {row.phase} line of attempt {key}")
            seen.add(key)
        for advance in batch.partitions:
            rows = self.outbox.get(advance.partition, {})
            if advance.outbox is not None and advance.outbox_seq in rows:
                return InvariantViolation(f"a second outbox row {advance.outbox_seq} of partition {advance.partition}")
        return None

    def _write(self, batch: Batch, txid: int) -> None:
        for advance in batch.partitions:
            self._advance(advance)
        for run in batch.runs:
            run = self._whole(run)
            self.runs[run.run_id] = run
            entry = Transition(run.expected + 1, run.execution, run.epoch, txid, run.now, run.entry)
            self.transitions.setdefault(run.run_id, []).append(entry)
        for attempt in batch.attempts:
            self.attempts.setdefault(_attempt_key(attempt), attempt)
        self._write_messages(batch)
        self._write_inbox(batch)
        gone = set(batch.closed_attempts)
        for opened in batch.open_attempts:
            self.open_attempts[opened.partition, opened.run_id, opened.execution, opened.node_id] = opened
        for closed in gone:
            self.open_attempts.pop(closed, None)
        for key, change in batch.counters.items():
            self.counters[key] = self.counters.get(key, 0) + change
        for id, body in batch.payloads:
            self.payloads.setdefault(id, body)

    def _whole(self, run: RunWrite) -> RunWrite:
        """The row that the write makes: without a header only that of a step on its way changes."""
        if run.header is not None:
            return run
        changes = {name: getattr(run, name) for name in ("expected", "entry", "epoch", "wake_at", "now")}
        return msgspec.structs.replace(self.runs[run.run_id], **changes)

    def _advance(self, advance: PartitionAdvance) -> None:
        row = self.partitions[advance.partition]
        row.offsets = tuple(advance.next)
        rows = self.outbox.setdefault(advance.partition, {})
        if rows and next(iter(rows)) <= advance.confirmed:
            for seq in [seq for seq in rows if seq <= advance.confirmed]:
                del rows[seq]
        if advance.outbox is not None:
            row.outbox_seq = max(row.outbox_seq, advance.outbox_seq)
            rows[advance.outbox_seq] = advance.outbox
        if advance.topic_ids is not None:
            row.topic_ids = dict(advance.topic_ids)

    def _write_messages(self, batch: Batch) -> None:
        released = set(batch.released)
        for row in batch.messages:
            key = (row.run_id, row.kind, row.id)
            applied = msgspec.structs.replace(row, body=None, expires_at=None)
            self.messages[key] = applied if key in released else row
        for key in batch.released:
            self.messages[key] = msgspec.structs.replace(self.messages[key], body=None)

    def _write_inbox(self, batch: Batch) -> None:
        for row in batch.inbox:
            there = self.inbox.setdefault(row.partition, {})
            if all(known.source != row.source for known in there.values()):
                self._inbox_id += 1
                there[self._inbox_id] = msgspec.structs.replace(row, id=self._inbox_id)
        for partition, id in batch.consumed:
            self.inbox[partition].pop(id, None)
        for partition, id, not_before, tries in batch.deferred:
            rows = self.inbox[partition]
            rows[id] = msgspec.structs.replace(rows[id], not_before=not_before, tries=tries)


class DatabaseServer:
    """All namespaces. ``now`` is the server's clock (ms)."""

    def __init__(self, now: Callable[[], int]) -> None:
        self.now = now
        self._databases: dict[str, Database] = {}

    def open(self, name: str, cluster_id: str, partitions: int) -> Database:
        """The namespace's rows; see ``RunStore.namespace``."""
        found = self._databases.get(name)
        if found is None:
            row = Namespace(len(self._databases) + 1, name, partitions, cluster_id)
            found = self._databases[name] = Database(row, self.now)
        if found.namespace.cluster_id != cluster_id:
            raise TopicsNotReady(
                f"namespace {name!r} belongs to the Kafka cluster {found.namespace.cluster_id}, this one is "
                f"{cluster_id}: use another namespace"
            )
        if partitions < found.namespace.partitions:
            raise TopicsNotReady(
                f"namespace {name!r} was created with {found.namespace.partitions} run partitions and the inbound "
                f"topics have {partitions}: raise them"
            )
        return found


def storable(text: str) -> bool:
    """Whether Postgres can hold this text: no U+0000, no lone surrogate."""
    return "\0" not in text and (text.isascii() or not any("\ud800" <= c <= "\udfff" for c in text))


def _attempt_key(row: AttemptRow) -> tuple[str, int, str, int, str]:
    return (row.run_id, row.execution, row.node_id, row.generation, row.phase)


def _check_fenced(batch: Batch) -> None:
    fenced = [p.partition for p in batch.partitions]
    if len(set(fenced)) != len(fenced):
        raise InvariantViolation("a batch names one partition twice")
    written = {row.partition for row in batch.runs} | {row.partition for row in batch.messages}
    written |= {row.partition for row in batch.open_attempts} | {partition for partition, _ in batch.consumed}
    written |= {row[0] for row in batch.deferred}
    written |= {key[0] for key in batch.closed_attempts} | {key[0] for key in batch.counters}
    if stray := written - set(fenced):
        raise InvariantViolation(f"a batch writes to partitions {sorted(stray)} without their fence")


def _poisoned(batch: Batch) -> tuple[str, str] | None:
    rows: list[RunWrite | AttemptRow | MessageRow | OpenAttempt]
    rows = [*batch.runs, *batch.attempts, *batch.messages, *batch.open_attempts]
    found = [(row.run_id, problem) for row in rows if (problem := _unstorable(row))]
    return min(found, key=lambda one: one[0], default=None)


@functools.cache
def _checked(kind: type[msgspec.Struct]) -> tuple[list[str], list[tuple[str, int]], _Getter, _Getter]:
    """The fields of such a row that are text, and those that are numbers, with the largest that fits; what gets them."""
    fields = msgspec.structs.fields(kind)
    numbers = [
        (f.name, _LARGEST_INT if f.name in ("execution", "generation", "attempt") else _LATEST_MS)
        for f in fields
        if f.name.endswith("_at") or f.name in ("execution", "generation", "attempt", "now", "at")
    ]
    texts = [f.name for f in fields if f.type in (str, str | None)]
    # One name alone would get no tuple: each has another one, which is passed over.
    return texts, numbers, attrgetter(*texts, texts[0]), attrgetter(*(name for name, _ in numbers), texts[0])


def _unstorable(row: msgspec.Struct) -> str:
    texts, numbers, texts_of, numbers_of = _checked(type(row))
    if not storable("".join(filter(None, texts_of(row)))):
        name = next(name for name in texts if not storable(getattr(row, name) or ""))
        return f"{name} is no text that can be stored"
    for (name, most), number in zip(numbers, numbers_of(row), strict=False):
        if number is not None and number > most:
            return f"{name} is out of range"
    return ""
