"""The commit of a batch, and what its failure means.

What landed is known or it is said not to be: an error that the server reports means that nothing landed, a
connection that ends meanwhile means that the outcome is unknown (protocol 3). Precedence where several things
are wrong at once: the fence, then versions and messages, then locks, then poison.
"""

from __future__ import annotations

from typing import Any

import psycopg
from psycopg import Connection, RawCursor
from psycopg.pq import TransactionStatus

from ductor_stream.errors import (
    CommitOutcomeUnknown,
    DataError,
    DuctorError,
    InvariantViolation,
    OwnershipLost,
    PoisonedRun,
    RecordVersionConflict,
    StoreUnavailable,
)
from ductor_stream.ports import Batch
from ductor_stream.store.binding import bind, check_fenced, part_of, run_ids_of
from ductor_stream.store.columns import Int2, Int4s, Int8s, Texts, storable
from ductor_stream.store.connection import line, lost, translated
from ductor_stream.store.queries import numbered, sql

_CHECK_FAILED = "22012"  # a division by zero: one of the checks in the final select
_DUPLICATE = "23505"
_LOCKED = "55P03"
_CANCELLED = "57014"
_DATA = ("22", "23", "54", "XX")  # classes of errors that a row's content can cause


def in_transaction(connection: Connection[Any]) -> bool:
    """Whether an explicit transaction is open (``lock`` began it)."""
    return connection.pgconn.transaction_status in (TransactionStatus.INTRANS, TransactionStatus.INERROR)


def roll_back(connection: Connection[Any]) -> None:
    """End an explicit transaction, if there is one, without a trace."""
    if in_transaction(connection):
        connection.execute(b"rollback")


def commit(connection: Connection[Any], ns: int, batch: Batch) -> int:
    """Write the batch; see ``RunStore.commit``. Ends the transaction that ``lock`` began."""
    check_fenced(batch)
    if lost(connection):
        raise StoreUnavailable("the connection to Postgres is closed, nothing was sent")
    try:
        row = _written(connection, ns, batch)
        if in_transaction(connection):
            connection.execute(b"commit")
    except (psycopg.Error, DataError) as error:
        raise _explained(connection, ns, batch, error) from error
    if row is None:
        raise InvariantViolation("the commit statement returned nothing")
    return int(row[-1])


def _written(connection: Connection[Any], ns: int, batch: Batch) -> tuple[Any, ...] | None:
    """The answer of the statement; sent once more where Postgres ended it to break a deadlock: nothing has landed then.

    A session that is no owner (a post migration, SQL by hand) may take tables and rows in another order than we do.
    """
    held = in_transaction(connection)
    try:
        return _write(connection, ns, batch).fetchone()
    except psycopg.errors.DeadlockDetected:
        if held:
            raise  # what ``lock`` held went with the transaction
        return _write(connection, ns, batch).fetchone()


def _write(connection: Connection[Any], ns: int, batch: Batch) -> RawCursor[Any]:
    parts, params = bind(batch, ns)
    statement, names = numbered("commit", parts)
    return RawCursor(connection).execute(statement, [params[name] for name in names], binary=True)


def _explained(connection: Connection[Any], ns: int, batch: Batch, error: psycopg.Error | DataError) -> Exception:
    state = getattr(error, "sqlstate", None)
    if lost(connection) or state == _CANCELLED:
        return CommitOutcomeUnknown(f"the answer to a commit was lost: {line(error)}")
    try:
        roll_back(connection)
        found = _mismatch(connection, ns, batch)
        if found is None and state == _LOCKED:
            found = _locked_by_others(connection, ns, batch)
        if found is None and isinstance(error, psycopg.Error) and not _is_data(error):
            return translated(error)
        if found is None and state not in (_CHECK_FAILED, _DUPLICATE):
            found = _poison(connection, ns, batch)
    except psycopg.Error as second:
        return StoreUnavailable(f"a commit was refused ({line(error)}), then Postgres went away: {line(second)}")
    return found or InvariantViolation(f"a commit was refused, and no reason is to be found: {line(error)}")


def _is_data(error: psycopg.Error | DataError) -> bool:
    return isinstance(error, DataError) or (error.sqlstate or "")[:2] in _DATA


# -- fence, versions, messages --------------------------------------------------------------


def _mismatch(connection: Connection[Any], ns: int, batch: Batch) -> DuctorError | None:
    if partitions := _foreign(connection, ns, batch) or _consumed_twice(connection, ns, batch):
        return OwnershipLost(frozenset(partitions))
    if run_ids := _moved(connection, ns, batch) | _messages_moved(connection, ns, batch):
        return RecordVersionConflict(frozenset(run_ids))
    return None


def _foreign(connection: Connection[Any], ns: int, batch: Batch) -> set[int]:
    ours = {p.partition: (p.token, p.epoch, tuple(p.previous)) for p in batch.partitions}
    rows = connection.execute(
        sql("read_fences"), {"ns": Int2(ns), "partitions": Int4s(list(ours))}, binary=True
    ).fetchall()
    held = {partition for partition, *fence in rows if (fence[0], fence[1], tuple(fence[2])) == ours[partition]}
    return set(ours) - held


def _consumed_twice(connection: Connection[Any], ns: int, batch: Batch) -> set[int]:
    taken = {*batch.consumed, *(row[:2] for row in batch.deferred)}
    if not taken:
        return set()
    partitions, ids = zip(*taken, strict=True)
    rows = connection.execute(
        sql("list_inbox_ids"),
        {"ns": Int2(ns), "partitions": Int4s(partitions), "ids": Int8s(ids)},
        binary=True,
    ).fetchall()
    return {partition for partition, _ in taken - set(rows)}


def _moved(connection: Connection[Any], ns: int, batch: Batch) -> set[str]:
    expected = {row.run_id: row.expected for row in batch.runs}
    ids = _storable(expected)
    rows = connection.execute(sql("read_versions"), {"ns": Int2(ns), "run_ids": Texts(ids)}, binary=True)
    found: dict[str, int] = dict(rows.fetchall())
    return {run_id for run_id in ids if found.get(run_id, 0) != expected[run_id]}


def _messages_moved(connection: Connection[Any], ns: int, batch: Batch) -> set[str]:
    noted = {(row.run_id, row.kind, row.id) for row in batch.messages}
    released = set(batch.released) - noted
    keys = [key for key in noted | released if all(map(storable, key))]
    if not keys:
        return set()
    run_ids, kinds, ids = zip(*keys, strict=True)
    rows = connection.execute(
        sql("known_messages"),
        {"ns": Int2(ns), "run_ids": Texts(run_ids), "kinds": Texts(kinds), "ids": Texts(ids)},
        binary=True,
    ).fetchall()
    there = {(run_id, kind, id_) for run_id, kind, id_, _, _ in rows}
    waiting = {(run_id, kind, id_) for run_id, kind, id_, _, buffered in rows if buffered}
    return {key[0] for key in noted & there} | {key[0] for key in released - waiting}


def _locked_by_others(connection: Connection[Any], ns: int, batch: Batch) -> DuctorError | None:
    """Runs whose rows another session keeps: they are held back as a conflict, so that their neighbours can go on."""
    ids = [row.run_id for row in batch.runs if row.expected]
    rows = connection.execute(sql("find_unlocked"), {"ns": Int2(ns), "run_ids": Texts(ids)}, binary=True)
    taken = set(ids) - {run_id for (run_id,) in rows.fetchall()}
    return RecordVersionConflict(frozenset(taken), locked=True) if taken else None


# -- poison ---------------------------------------------------------------------------------


def _storable(texts: Any) -> list[str]:
    return [text for text in texts if storable(text)]


def _poison(connection: Connection[Any], ns: int, batch: Batch) -> DuctorError | None:
    """Bisect to one run that fails by itself; trials are rolled back."""
    suspects = run_ids_of(batch)
    while len(suspects) > 1:
        half = suspects[: len(suspects) // 2]
        suspects = half if _trial(connection, ns, batch, half) else suspects[len(half) :]
    if suspects and (message := _trial(connection, ns, batch, suspects)):
        return PoisonedRun(suspects[0], message)
    return None


def _trial(connection: Connection[Any], ns: int, batch: Batch, run_ids: list[str]) -> str | None:
    """Try these runs alone; returns what Postgres says against them, None if they pass."""
    try:
        connection.execute(b"begin")
        _write(connection, ns, part_of(batch, frozenset(run_ids)))
    except (psycopg.Error, DataError) as error:
        if lost(connection) or not _is_data(error):
            raise
        return line(error)
    finally:
        if not lost(connection):
            roll_back(connection)
    return None
