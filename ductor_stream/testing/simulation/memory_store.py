"""``ports.RunStore`` over a database in memory that several stores share. Guarantees are those of Postgres."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Sequence
from typing import TypeVar

from ductor_stream.errors import (
    CommitOutcomeUnknown,
    InvariantViolation,
    OwnershipLost,
    PoisonedRun,
    RecordVersionConflict,
    StoreUnavailable,
)
from ductor_stream.ports import (
    UNBOUNDED,
    Batch,
    BufferedMessage,
    Foldable,
    Folded,
    InboxRow,
    LoadedRun,
    MessageRow,
    Namespace,
    Taken,
)
from ductor_stream.testing.simulation.gate import Gate
from ductor_stream.testing.simulation.memory_database import Database, DatabaseServer

T = TypeVar("T")


class MemoryStore:
    """One session. ``gate`` decides about faults; ``stray`` is where commits go that are executed too late."""

    def __init__(self, server: DatabaseServer, gate: Gate | None = None, stray: list[Batch] | None = None) -> None:
        self._server, self._gate = server, gate or Gate()
        self._stray = stray if stray is not None else []
        self._opened: Database | None = None
        self._broken = False

    @property
    def database(self) -> Database:
        """The rows of the namespace that this store works in. Raises InvariantViolation before ``namespace``."""
        if self._opened is None:
            raise InvariantViolation("no namespace was opened")
        return self._opened

    # -- namespace and partitions -----------------------------------------------------------

    def namespace(self, name: str, cluster_id: str, partitions: int) -> Namespace:
        """Find or create the namespace, and work in it from now on. Raises TopicsNotReady."""
        self._gate.enter("namespace")
        self._opened = self._server.open(name, cluster_id, partitions)
        return self._opened.namespace

    def take(self, partition: int, token: str) -> Taken:
        """Raise the epoch, then read. Others may come in between the two, as with two statements."""
        self._gate.enter("take")
        row, before = self.database.take(partition, token)
        epoch = row.epoch
        self._gate.leave("take")
        if (row.token, row.epoch) != (token, epoch):
            raise OwnershipLost(frozenset({partition}))
        rows = self.database.outbox.get(partition, {})
        attempts = [a for key, a in sorted(self.database.open_attempts.items()) if key[0] == partition]
        return Taken(
            partition=partition,
            token=token,
            epoch=epoch,
            offsets=row.offsets,
            topic_ids=dict(row.topic_ids),
            outbox=sorted(rows.items()),
            outbox_seq=row.outbox_seq,
            open_attempts=attempts,
            clean=before.clean,
            last_token=before.token,
            suspect=before.suspect,
            deaths=before.deaths,
            now=self._server.now(),
        )

    def release(self, partition: int, token: str, epoch: int) -> None:
        """Say that the partition was let go in good order."""
        self._gate.enter("release")
        row = self.database.partitions.get(partition)
        if row is not None and (row.token, row.epoch) == (token, epoch):
            row.clean = True

    def note(self, partition: int, token: str, epoch: int, run_id: str | None, deaths: int) -> None:
        """Write down which run is about to be tried, or None (nothing if the partition is no longer ours)."""
        self._gate.enter("note")
        row = self.database.partitions.get(partition)
        if row is not None and (row.token, row.epoch) == (token, epoch):
            row.suspect, row.deaths = run_id, deaths

    def declare(self, definitions: Sequence[tuple[str, str, str]]) -> None:
        """Record (workflow, version, digest) that this process serves."""
        self._gate.enter("declare")
        self.database.declared.update(definitions)

    # -- runs -------------------------------------------------------------------------------

    def load(
        self, run_ids: Sequence[str], whole: Collection[str] = (), at_most: int = UNBOUNDED
    ) -> dict[str, LoadedRun]:
        """The first of these runs, with their records and buffered messages: as many as ``at_most`` bytes of those hold."""
        self._gate.enter("load")
        found: dict[str, LoadedRun] = {}
        for run_id in dict.fromkeys(run_ids):
            run = self._loaded(run_id, run_id in whole)
            at_most -= sum(map(len, run.records)) + sum(len(message.body) for message in run.buffered)
            if found and at_most < 0:
                break
            found[run_id] = run
        return found

    def _loaded(self, run_id: str, whole: bool) -> LoadedRun:
        database = self.database
        buffered = [_buffered(row) for row in database.waiting(run_id)]
        run = database.runs.get(run_id)
        if run is None:
            return LoadedRun(run_id, 0, None, [], buffered)
        records: list[bytes] = []
        if run.closed_at is None or whole:
            entries = database.transitions[run_id]
            records = [entry.records for entry in entries if entry.record_version >= run.journal_from]
        return LoadedRun(run_id, run.expected + 1, run.header, records, buffered, run.journal_from)

    def lock(self, run_ids: Sequence[str]) -> None:
        """Nobody else holds locks here, and none are needed: a commit is not interrupted."""
        self._gate.enter("lock")

    def unlocked(self, run_ids: Sequence[str]) -> set[str]:
        """All of them: see ``lock``."""
        self._gate.enter("unlocked")
        return set(run_ids)

    def known_messages(self, keys: Sequence[tuple[str, str, str]]) -> dict[tuple[str, str, str], str]:
        """Which of these (run id, kind, id) were applied or buffered already, and their names."""
        self._gate.enter("known_messages")
        messages = self.database.messages
        return {key: messages[key].name for key in keys if key in messages}

    def commit(self, batch: Batch) -> int:
        """Write the batch or nothing; the gate may have the outcome stay unknown."""
        self._gate.enter("commit")
        if self._broken:
            raise StoreUnavailable("the connection is closed, nothing was sent")
        outcome = self._gate.outcome(batch)
        if outcome == "refused":
            raise StoreUnavailable("refused")
        if outcome == "conflict":
            losers = frozenset({batch.runs[0].run_id})
            self.database.lost(batch, losers)
            raise RecordVersionConflict(losers)
        if outcome == "poisoned":
            raise PoisonedRun(batch.runs[0].run_id, "simulated")
        if outcome in ("unknown_lost", "unknown_late"):
            self._broken = True
            if outcome == "unknown_late":
                self._stray.append(batch)
            raise CommitOutcomeUnknown("the answer to a commit was lost")
        now = self.database.commit(batch)
        if outcome == "unknown_landed":
            self._broken = True
            raise CommitOutcomeUnknown("the answer to a commit was lost")
        self._gate.leave("commit")
        return now

    def foldable(self, run_id: str, below: int, limit: int, size: int) -> Foldable:
        """What is folded of a run, and the transitions after that with a record_version under ``below``."""
        self._gate.enter("foldable")
        found = [t for t in self.database.transitions.get(run_id, []) if t.record_version < below][:limit]
        found = _within(size, found, lambda transition: len(transition.records))
        folded = self.database.summaries.get(run_id, Folded())
        return Foldable(folded, [(t.record_version, t.execution, t.at, t.records) for t in found])

    def drop_attempts(self, fence: tuple[int, str, int], run_id: str, execution: int, limit: int) -> int:
        """Delete attempts of executions before ``execution``, at most ``limit``; returns how many went."""
        self._gate.enter("drop_attempts")
        return self.database.drop_attempts(fence, run_id, execution, limit)

    def fold(self, fence: tuple[int, str, int], run_id: str, before: int, folded: Folded) -> bool:
        """Put ``folded`` in the place of the transitions after ``before``, all of it or nothing (False)."""
        self._gate.enter("fold")
        done = self.database.fold(fence, run_id, before, folded)
        self._gate.leave("fold")
        return done

    # -- what a partition has to do ---------------------------------------------------------

    def _open(self, partition: int, after: str) -> list[str]:
        runs = self.database.runs
        return sorted(
            run_id
            for run_id, run in runs.items()
            if run.partition == partition and run.closed_at is None and run_id > after
        )

    def due_runs(self, partition: int, until: int, limit: int, after: str) -> list[tuple[str, int]]:
        """Open runs with ``wake_at`` up to ``until`` (ms), by run id beyond ``after``."""
        self._gate.enter("due_runs")
        runs = ((run_id, self.database.runs[run_id].wake_at) for run_id in self._open(partition, after))
        return [(run_id, at) for run_id, at in runs if at is not None and at <= until][:limit]

    def open_runs(self, partition: int, limit: int, after: str, size: int) -> list[str]:
        """Ids of open runs, by run id beyond ``after``: up to ``size`` bytes of records, but one at least."""
        self._gate.enter("open_runs")
        return _within(size, self._open(partition, after)[:limit], self._size)

    def _size(self, run_id: str) -> int:
        since = self.database.runs[run_id].journal_from
        return sum(len(t.records) for t in self.database.transitions[run_id] if t.record_version >= since)

    def suspended_runs(self, partition: int, limit: int, after: str) -> list[tuple[str, str, str]]:
        """Suspended runs: (run id, workflow, version)."""
        self._gate.enter("suspended_runs")
        runs = [self.database.runs[run_id] for run_id in self._open(partition, after)]
        return [(run.run_id, run.workflow, run.version) for run in runs if run.status == "suspended"][:limit]

    def inbox(self, partition: int, limit: int, now: int) -> list[InboxRow]:
        """Rows of the inbox that may be applied at ``now`` (ms), oldest first."""
        self._gate.enter("inbox")
        rows = self.database.inbox.get(partition, {}).values()
        return [row for row in rows if row.not_before is None or row.not_before <= now][:limit]

    def put_off(self, partition: int, limit: int, after: int) -> list[InboxRow]:
        """Rows that were put off before, due or not, by id beyond ``after``: read with ``take``, for whoever is let in."""
        rows = self.database.inbox.get(partition, {}).values()
        waiting = (row for row in rows if row.id > after and (row.not_before is not None or row.tries))
        return [row for row in waiting if row.kind != "produce"][:limit]

    def expired_messages(self, partition: int, now: int, limit: int) -> list[tuple[str, BufferedMessage]]:
        """Buffered messages whose time to live has passed at ``now`` (ms)."""
        self._gate.enter("expired_messages")
        rows = [
            row
            for row in self.database.messages.values()
            if row.partition == partition and row.body is not None and (row.expires_at or 0) <= now
        ]
        rows.sort(key=lambda row: row.expires_at or 0)
        return [(row.run_id, _buffered(row)) for row in rows[:limit]]

    # -- the connection ---------------------------------------------------------------------

    def ping(self) -> int:
        """The server's clock in ms. Raises StoreUnavailable."""
        self._gate.enter("ping")
        return self._server.now()

    def reconnect(self) -> None:
        """Drop the connection and open another. Raises StoreUnavailable."""
        self._gate.enter("reconnect")
        self._broken = False

    def close(self) -> None:
        """Close the connection."""


def _within(size: int, found: list[T], size_of: Callable[[T], int]) -> list[T]:
    """Those that begin within so many bytes."""
    before = itertools.accumulate(map(size_of, found), initial=0)
    return [each for each, start in zip(found, before, strict=False) if start < size]


def _buffered(row: MessageRow) -> BufferedMessage:
    return BufferedMessage(row.id, row.kind, row.body or b"", row.expires_at or 0)
