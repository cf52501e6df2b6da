"""``PostgresStore``: the port ``RunStore`` over one connection to Postgres, used by one thread."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import psycopg

from ductor_stream.errors import InvariantViolation, RecordVersionConflict, StoreUnavailable, TopicsNotReady
from ductor_stream.ports import (
    UNBOUNDED,
    Batch,
    BufferedMessage,
    Foldable,
    Folded,
    InboxRow,
    LoadedRun,
    Namespace,
    Taken,
)
from ductor_stream.store import commit as committing
from ductor_stream.store import folding, takeover
from ductor_stream.store.columns import Column, Int2, Int4, Int8, Moment, Text, Texts, storable
from ductor_stream.store.connection import (
    OwnedConnection,
    StoreOptions,
    apply,
    lost,
    open_owner,
    owner_name,
    translated,
)
from ductor_stream.store.queries import sql

__all__ = ["PostgresStore", "StoreOptions"]


class PostgresStore:
    """Runs, partitions and messages in Postgres.

    Delivery guarantee: ``commit`` lands as a whole or not at all; what its errors say about that is in ``RunStore``.
    A method that raises StoreUnavailable leaves the connection as it is: call ``reconnect``.
    """

    def __init__(self, dsn: str, namespace: Namespace | None = None, options: StoreOptions | None = None) -> None:
        """Connect. Without ``namespace``, call ``namespace()`` before anything else. Raises StoreUnavailable."""
        self._dsn = dsn
        self._options = options or StoreOptions()
        self._namespace = namespace
        self._connection = self._opened()

    def _opened(self) -> OwnedConnection:
        label = self._namespace.name if self._namespace else "-"
        return open_owner(self._dsn, self._options, label)

    @property
    def _ns(self) -> int:
        if self._namespace is None:
            raise InvariantViolation("the store was used before its namespace was known")
        return self._namespace.ns

    @contextmanager
    def _asking(self) -> Iterator[OwnedConnection]:
        if lost(self._connection):
            raise StoreUnavailable("the connection to Postgres is closed")
        try:
            yield self._connection
        except psycopg.Error as error:
            raise translated(error) from error

    def _rows(self, name: str, params: Mapping[str, Any]) -> list[tuple[Any, ...]]:
        with self._asking() as connection:
            return connection.execute(sql(name), params, binary=True).fetchall()

    def _run(self, name: str, params: Mapping[str, Any]) -> None:
        with self._asking() as connection:
            connection.execute(sql(name), params)

    # -- namespace and partitions -----------------------------------------------------------

    def namespace(self, name: str, cluster_id: str, partitions: int) -> Namespace:
        """Find or create the namespace's row, and work in it from now on.

        The recorded N wins over a higher count of partitions (protocol 7). Raises TopicsNotReady, StoreUnavailable.
        """
        key = {"name": Text(name)}
        rows = self._rows("find_namespace", key)
        if not rows:
            row = key | {"partitions": Int4(partitions), "cluster_id": Text(cluster_id)}
            self._run("create_namespace", row)
            rows = self._rows("find_namespace", key)
        ns, _, recorded, cluster = rows[0]
        found = Namespace(ns, name, recorded, cluster)
        _check_namespace(found, cluster_id, partitions)
        self._namespace = found
        with self._asking() as connection:
            apply(connection, {"application_name": owner_name(name)})
        return found

    def take(self, partition: int, token: str) -> Taken:
        """Raise the epoch under a new token, then read what is there in a new statement (protocol 1, 6).

        A session of ours that keeps the row locked beyond ``lock_timeout_ms`` is ended. Raises OwnershipLost when
        another owner took it meanwhile, StoreUnavailable when somebody else's session keeps it locked.
        """
        with self._asking() as connection:
            committing.roll_back(connection)
            return takeover.take(connection, self._ns, partition, token)

    def release(self, partition: int, token: str, epoch: int) -> None:
        """Say that the partition was let go in good order (nothing if it is no longer ours)."""
        fence = {"partition": Int4(partition), "token": Text(token), "epoch": Int8(epoch)}
        self._run("release_partition", self._keyed(**fence))

    def declare(self, definitions: Sequence[tuple[str, str, str]]) -> None:
        """Record (workflow, version, digest) that this process serves."""
        self._run("declare", self._keyed(**_columns(("workflow", "version", "digest"), sorted(definitions))))

    def _keyed(self, **params: Any) -> dict[str, Any]:
        return {"ns": Int2(self._ns), **params}

    # -- runs -------------------------------------------------------------------------------

    def note(self, partition: int, token: str, epoch: int, run_id: str | None, deaths: int) -> None:
        """Write down which run is about to be tried, or None (nothing if the partition is no longer ours)."""
        fence = {"partition": Int4(partition), "token": Text(token), "epoch": Int8(epoch)}
        with self._asking() as connection:
            connection.execute(sql("note_suspect"), self._keyed(run_id=Text(run_id), deaths=Int2(deaths), **fence))

    def load(
        self, run_ids: Sequence[str], whole: Collection[str] = (), at_most: int = UNBOUNDED
    ) -> dict[str, LoadedRun]:
        """The first of these runs, with their records and buffered messages: as many as ``at_most`` bytes of those hold.

        One is there at least. Closed runs come without their records, unless they are in ``whole``.
        """
        # An id that Postgres cannot hold belongs to no run: asking for it would fail the others' load.
        ids = [run_id for run_id in dict.fromkeys(run_ids) if storable(run_id)]
        loaded = {run_id: LoadedRun(run_id, 0, None, [], []) for run_id in run_ids if not storable(run_id)}
        if ids:
            params = self._keyed(run_ids=Texts(ids), whole=Texts(sorted(whole)), bytes=Int8(at_most))
            loaded.update((row[0], _loaded(*row)) for row in self._rows("load_runs", params))
        return loaded

    def lock(self, run_ids: Sequence[str]) -> None:
        """For the last try of a conflict: hold the row locks of these runs until the next commit (protocol 18).

        The partitions of these runs are locked before them, in the order in which a commit locks: two owners in a
        quarrel cannot deadlock. The locks end with the next commit, however it ends, or with the next ``take`` or
        ``lock``. Raises RecordVersionConflict when another session keeps them, StoreUnavailable.
        """
        ids = sorted({run_id for run_id in run_ids if storable(run_id)})
        params = self._keyed(run_ids=Texts(ids))
        with self._asking() as connection:
            committing.roll_back(connection)
            connection.execute(b"begin")
            try:
                connection.execute(sql("lock_partitions"), params)
                connection.execute(sql("lock_runs"), params)
            except psycopg.Error as error:
                if not lost(connection):
                    committing.roll_back(connection)
                if isinstance(error, psycopg.errors.LockNotAvailable):
                    raise RecordVersionConflict(frozenset(ids)) from error
                raise

    def unlocked(self, run_ids: Sequence[str]) -> set[str]:
        """Those of these runs whose rows nobody else holds at this moment; waits for none."""
        params = self._keyed(run_ids=Texts([run_id for run_id in run_ids if storable(run_id)]))
        free = {run_id for (run_id,) in self._rows("find_unlocked", params)}
        return set(run_ids) - {run_id for run_id, _ in self._rows("read_versions", params) if run_id not in free}

    def commit(self, batch: Batch) -> int:
        """Write the batch in one statement; returns Postgres's clock in ms at the commit.

        Raises, with nothing landed: OwnershipLost, RecordVersionConflict (also for runs whose rows another session
        keeps locked), PoisonedRun, StoreUnavailable (also after a second deadlock), InvariantViolation.
        Raises CommitOutcomeUnknown when the connection ended, or the statement was cancelled, after it was sent.
        """
        return committing.commit(self._connection, self._ns, batch)

    def known_messages(self, keys: Sequence[tuple[str, str, str]]) -> dict[tuple[str, str, str], str]:
        """Which of these (run id, kind, id) were applied or buffered already, and their names."""
        wanted = [key for key in dict.fromkeys(keys) if all(map(storable, key))]
        if not wanted:
            return {}
        rows = self._rows("known_messages", self._keyed(**_columns(("run_ids", "kinds", "ids"), wanted)))
        return {(run_id, kind, id_): name for run_id, kind, id_, name, _ in rows}

    def foldable(self, run_id: str, below: int, limit: int, size: int) -> Foldable:
        """What is folded of a run, and the transitions after that with a record_version under ``below``."""
        with self._asking() as connection:
            return folding.foldable(connection, self._ns, run_id, below, limit, size)

    def drop_attempts(self, fence: tuple[int, str, int], run_id: str, execution: int, limit: int) -> int:
        """Delete attempts of executions before ``execution``, at most ``limit`` rows; says how many went."""
        with self._asking() as connection:
            return folding.drop_attempts(connection, self._ns, fence, run_id, execution, limit)

    def fold(self, fence: tuple[int, str, int], run_id: str, before: int, folded: Folded) -> bool:
        """Put ``folded`` in the place of the transitions after ``before``, all of it or nothing (False)."""
        with self._asking() as connection:
            return folding.fold(connection, self._ns, fence, run_id, before, folded)

    # -- what a partition has to do ---------------------------------------------------------

    def due_runs(self, partition: int, until: int, limit: int, after: str) -> list[tuple[str, int]]:
        """Open runs with ``wake_at`` up to ``until`` (ms), by run id beyond ``after``: (run id, wake_at)."""
        rows = self._rows("list_due_runs", self._page(partition, limit, after) | {"until": Moment(until)})
        return [(run_id, wake_at) for run_id, wake_at in rows]

    def open_runs(self, partition: int, limit: int, after: str, size: int) -> list[str]:
        """Ids of open runs, by run id beyond ``after``: up to ``size`` bytes of records, but one at least."""
        page = self._page(partition, limit, after) | {"bytes": Int8(size)}
        return [run_id for (run_id,) in self._rows("list_open_runs", page)]

    def suspended_runs(self, partition: int, limit: int, after: str) -> list[tuple[str, str, str]]:
        """Suspended runs by run id beyond ``after``: (run id, workflow, version)."""
        rows = self._rows("list_suspended_runs", self._page(partition, limit, after))
        return [(run_id, workflow, version) for run_id, workflow, version in rows]

    def _page(self, partition: int, limit: int, after: str) -> dict[str, Any]:
        return self._keyed(partition=Int4(partition), limit=Int8(limit), after=Text(after))

    def inbox(self, partition: int, limit: int, now: int) -> list[InboxRow]:
        """Rows of the inbox that may be applied at ``now`` (ms), oldest first."""
        params = self._keyed(partition=Int4(partition), limit=Int8(limit), now=Moment(now))
        return [_inbox_row(partition, *row) for row in self._rows("list_inbox", params)]

    def put_off(self, partition: int, limit: int, after: int) -> list[InboxRow]:
        """Rows that were put off before, due or not, by id beyond ``after``, but nothing that is to be produced."""
        params = self._keyed(partition=Int4(partition), limit=Int8(limit), after=Int8(after))
        return [_inbox_row(partition, *row) for row in self._rows("list_put_off", params)]

    def expired_messages(self, partition: int, now: int, limit: int) -> list[tuple[str, BufferedMessage]]:
        """Buffered messages whose time to live has passed at ``now`` (ms): (run id, message)."""
        params = self._keyed(partition=Int4(partition), limit=Int8(limit), now=Moment(now))
        return [(run_id, BufferedMessage(*message)) for run_id, *message in self._rows("list_expired_messages", params)]

    # -- the connection ---------------------------------------------------------------------

    def ping(self) -> int:
        """Postgres's clock in ms. Raises StoreUnavailable, soon: a server that hangs is away."""
        with self._connection.answering_within(self._options.ping_timeout_ms / 1000):
            return int(self._rows("read_clock", {})[0][0])

    def reconnect(self) -> None:
        """Drop the connection and open another. Raises StoreUnavailable."""
        self._connection.close()
        self._connection = self._opened()

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


def _columns(names: Sequence[str], rows: Sequence[Sequence[str]]) -> dict[str, Column]:
    columns = zip(*rows, strict=True) if rows else [()] * len(names)
    return {name: Texts(list(values)) for name, values in zip(names, columns, strict=True)}


def _inbox_row(
    partition: int, id_: int, source: str, kind: str, body: bytes, not_before: int | None, tries: int
) -> InboxRow:
    return InboxRow(partition, source, kind, body, not_before, tries, id_)


def _loaded(
    run_id: str,
    version: int | None,
    header: bytes | None,
    journal_from: int | None,
    records: list[bytes],
    *buffered: Any,
) -> LoadedRun:
    messages = [BufferedMessage(*message) for message in zip(*buffered, strict=True)] if buffered[0] else []
    return LoadedRun(run_id, version or 0, header, records, messages, journal_from or 0)


def _check_namespace(found: Namespace, cluster_id: str, partitions: int) -> None:
    if found.cluster_id != cluster_id:
        raise TopicsNotReady(
            f"namespace {found.name!r} in this database belongs to the Kafka cluster {found.cluster_id}, this one is "
            f"{cluster_id}: use another namespace (DUCTOR_NAMESPACE) or another database"
        )
    if partitions < found.partitions:
        raise TopicsNotReady(
            f"namespace {found.name!r} was created with {found.partitions} run partitions and the inbound topics have "
            f"{partitions}: raise run-events, attempt-results and wakeups to {found.partitions} partitions each "
            "(`ductor-stream topics create`)"
        )
