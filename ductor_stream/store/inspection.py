"""What a Postgres tells of itself and of our tables in it, for ``doctor``. Read only."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Literal

import msgspec
import psycopg
from psycopg import Connection

from ductor_stream.errors import SchemaMismatch, StoreUnavailable
from ductor_stream.store.connection import StoreOptions, line
from ductor_stream.store.grants import COORDINATOR
from ductor_stream.store.migrate import pending
from ductor_stream.store.queries import sql

Pooling = Literal["none", "session", "transaction"]

_CLOCK_LOOKS = 5
"""The fastest of some answers says most about the clock."""


class PostgresFacts(msgspec.Struct, frozen=True, kw_only=True):
    """A server as it describes itself, and what is in the database. Times are ms."""

    version: str
    version_number: int
    standby: bool
    synchronous_commit: str = "on"
    standby_names: str = ""
    durable: bool = True
    """Whether ``fsync`` and ``full_page_writes`` are on."""
    replicas: int = 0
    user: str = ""
    clock_ahead_ms: float = 0.0
    clock_error_ms: float = 0.0
    pooling: Pooling = "none"
    due: Sequence[str] = ()
    """Migrations that are not applied yet."""
    newer: str | None = None
    """Why the schema is too new, or cannot be read."""
    partitions: int | None = None
    cluster_id: str | None = None
    missing_rights: Sequence[str] = ()


def inspect_postgres(dsn: str, namespace: str) -> PostgresFacts:
    """Ask for everything that ``doctor`` judges. Raises StoreUnavailable."""
    try:
        with _reached(dsn) as first, _reached(dsn) as second:
            row = first.execute(sql("inspect_server")).fetchone()
            assert row is not None
            version, number, standby, commit, names, durable, replicas, _, user = row
            ahead, error = _clock(first)
            partitions, cluster = _namespace(first, namespace)
            due, newer = _schema(dsn) if not standby else ((), None)
            return PostgresFacts(
                version=str(version).partition(" ")[0],
                version_number=number,
                standby=standby,
                synchronous_commit=commit,
                standby_names=names,
                durable=durable,
                replicas=replicas,
                user=user,
                clock_ahead_ms=ahead,
                clock_error_ms=error,
                pooling=pooling_of(first, second),
                due=due,
                newer=newer,
                partitions=partitions,
                cluster_id=cluster,
                missing_rights=_missing_rights(first),
            )
    except psycopg.Error as error:
        raise StoreUnavailable(f"Postgres cannot be reached: {line(error)}") from error


def _reached(dsn: str) -> Connection[Any]:
    """A session on the server that owners would use, of all that the URL names; else on any, so that a standby is told."""
    try:
        return _connected(dsn, "read-write")
    except psycopg.OperationalError:
        return _connected(dsn, "any")


def _connected(dsn: str, target: str) -> Connection[Any]:
    options = StoreOptions()
    return psycopg.connect(
        dsn,
        autocommit=True,
        prepare_threshold=None,  # behind a pooler a statement prepared in one session is unknown in the next
        application_name="ductor-stream doctor",
        target_session_attrs=target,
        connect_timeout=options.connect_timeout_ms // 1000,
    )


def pooling_of(first: Connection[Any], second: Connection[Any]) -> Pooling:
    """Whether something in between hands server processes out: for a whole session, or for each transaction.

    Two direct sessions have a process each, under the number that the server gave at the start. A pooler makes
    numbers of its own up, and in transaction mode both sessions take turns on the same process.
    """
    before = _backend(first)
    with second.transaction():
        taken = _backend(second)
        after = _backend(first)
    if taken == before or after != before:
        return "transaction"
    return "none" if first.info.backend_pid == before else "session"


def _backend(connection: Connection[Any]) -> int:
    row = connection.execute(sql("inspect_backend")).fetchone()
    assert row is not None
    return int(row[0])


def _clock(connection: Connection[Any]) -> tuple[float, float]:
    """How far Postgres's clock is ahead of ours, and by how much that may be wrong."""
    looks: list[tuple[float, float]] = []
    for _ in range(_CLOCK_LOOKS):
        before = time.time() * 1000
        row = connection.execute(sql("inspect_clock")).fetchone()
        after = time.time() * 1000
        assert row is not None
        looks.append(((after - before) / 2, row[0] - (before + after) / 2))
    error, ahead = min(looks)
    return ahead, error


def _schema(dsn: str) -> tuple[Sequence[str], str | None]:
    try:
        return pending(dsn), None
    except SchemaMismatch as error:
        return (), str(error)


def _namespace(connection: Connection[Any], name: str) -> tuple[int | None, str | None]:
    try:
        row = connection.execute(sql("find_namespace"), {"name": name}).fetchone()
    except (psycopg.errors.UndefinedTable, psycopg.errors.InsufficientPrivilege):
        return None, None
    return (row[2], row[3]) if row is not None else (None, None)


def _missing_rights(connection: Connection[Any]) -> list[str]:
    """Of what `grants` gives a coordinator. Tables that are not there yet are another check's affair."""
    needed = [(table, right) for table, rights in COORDINATOR.items() for right in rights]
    asked = {"relations": [table for table, _ in needed], "privileges": [right for _, right in needed]}
    return [str(row[0]) for row in connection.execute(sql("list_missing_rights"), asked)]
