"""Migrations: forward only, each in a transaction of its own, under one lock for the whole database.

Files are ``sql/migrations/NNNN_{pre|post}_name.sql``. A *pre* migration is applied before the new release is
deployed, and the release before it still works on it; a *post* migration is applied after, when no process of the
release before runs any more. Within one release the numbers of pre come before those of post.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from importlib.resources import files
from typing import Any, Literal

import msgspec
import psycopg
from psycopg import Connection

from ductor_stream.errors import InvariantViolation, SchemaMismatch, StoreUnavailable
from ductor_stream.store.connection import StoreOptions, line

Phase = Literal["all", "pre", "post"]

_NAME = re.compile(r"(?P<version>\d{4})_(?P<phase>pre|post)_(?P<name>[a-z0-9_]+)")
_OLDEST_SERVER = 140_000  # SQL of 14
_LOCK = 0x6475_6374_6F72  # "ductor": one migrator at a time in a database
_TRIES = 5  # of a migration that Postgres ends as one of a deadlock: owners go on committing meanwhile
_PAUSE_S = 0.5  # after the first such try, doubled with each
_LOCK_TIMEOUT = "30s"  # a migration that waits for a table makes all others wait behind it


class Migration(msgspec.Struct, frozen=True):
    """One file: its number, phase and name, and the statements in it."""

    version: int
    phase: str
    name: str
    sql: bytes

    @property
    def label(self) -> str:
        """The file's name without its suffix."""
        return f"{self.version:04d}_{self.phase}_{self.name}"


@lru_cache(maxsize=1)
def migrations() -> tuple[Migration, ...]:
    """All migrations of this release, in order."""
    found: list[Migration] = []
    for file in files(__package__).joinpath("sql/migrations").iterdir():
        if file.name.endswith(".sql"):
            parts = _NAME.fullmatch(file.name.removesuffix(".sql"))
            if parts is None:
                raise InvariantViolation(
                    f"a migration is not named NNNN_pre_name.sql or NNNN_post_name.sql: {file.name}"
                )
            found.append(Migration(int(parts["version"]), parts["phase"], parts["name"], file.read_bytes()))
    found.sort(key=lambda m: m.version)
    if len({m.version for m in found}) != len(found):
        raise InvariantViolation("two migrations have the same number")
    return tuple(found)


def migrate(dsn: str, phase: Phase = "all", dry_run: bool = False) -> list[str]:
    """Bring the schema up to this release; returns the labels of what was (or, with ``dry_run``, would be) applied.

    Safe to call from several processes at once, and again after a crash: each migration lands as a whole.
    Raises SchemaMismatch (the database is ahead of this release, or another phase is due first), StoreUnavailable (also
    where another session keeps a table locked for too long, or wins each deadlock).
    """
    with _session(dsn) as connection:
        connection.execute("select pg_advisory_lock(%s)", (_LOCK,))
        try:
            due = _due(_applied(connection), phase)
            for migration in () if dry_run else due:
                _apply(connection, migration)
        finally:
            connection.execute("select pg_advisory_unlock(%s)", (_LOCK,))
    return [migration.label for migration in due]


def pending(dsn: str) -> list[str]:
    """Labels of what is not applied yet, for people who look: takes no lock, waits for nobody.

    Raises SchemaMismatch (the database is ahead of this release, or cannot be read), StoreUnavailable.
    """
    with _session(dsn) as connection:
        return [migration.label for migration in _due(_applied(connection), "all")]


def check(dsn: str) -> None:
    """Raise SchemaMismatch unless this release can run on the schema; the message has the command that mends it.

    All pre migrations of this release must be there. Post migrations may be due. A pre migration of a later
    release is fine (this release is the one before it), a post migration of a later one is not.
    Raises StoreUnavailable when Postgres is away.
    """
    with _session(dsn) as connection:
        applied = _applied(connection)
        _refuse_newer(applied)
        missing = [m.label for m in migrations() if m.phase == "pre" and (m.version, m.phase) not in applied]
        if missing:
            state = "is too old" if applied else "does not exist yet"
            raise SchemaMismatch(
                f"the database schema {state} (missing: {', '.join(missing)}): run `ductor-stream migrate`"
            )


def _due(applied: dict[tuple[int, str], str], phase: Phase) -> list[Migration]:
    _refuse_newer(applied)
    pending = [m for m in migrations() if (m.version, m.phase) not in applied]
    due = [m for m in pending if phase in ("all", m.phase)]
    held_up = [m.label for m in pending if due and m.version < due[-1].version and m not in due]
    if held_up:
        raise SchemaMismatch(
            f"{', '.join(held_up)} must be applied before {due[-1].label}: run `ductor-stream migrate` without a phase"
        )
    return due


def _refuse_newer(applied: dict[tuple[int, str], str]) -> None:
    known = {(m.version, m.phase) for m in migrations()}
    newer = [f"{v:04d}_{p}_{applied[v, p]}" for v, p in sorted(set(applied) - known) if p == "post"]
    if newer:
        raise SchemaMismatch(
            f"the database schema is newer than this release (it has {', '.join(newer)}): upgrade ductor-stream"
        )


def _applied(connection: Connection[Any]) -> dict[tuple[int, str], str]:
    if connection.info.server_version < _OLDEST_SERVER:
        raise SchemaMismatch(
            f"Postgres {connection.info.server_version // 10_000} is too old: use Postgres 14 or later"
        )
    row = connection.execute("select to_regclass('eec_schema') is not null").fetchone()
    if row is None or not row[0]:
        return {}
    rows = connection.execute("select version, phase, name from eec_schema")
    return {(version, phase): name for version, phase, name in rows}


def _apply(connection: Connection[Any], migration: Migration) -> None:
    """Again where it and an owner's commit have waited for each other's rows, and Postgres has ended it.

    After a pause: else it may have the rows once more before the other, which waits for them, has woken up.
    """
    for number in range(_TRIES - 1):
        with suppress(psycopg.errors.DeadlockDetected):
            return _apply_once(connection, migration)
        time.sleep(_PAUSE_S * 2**number)
    return _apply_once(connection, migration)


def _apply_once(connection: Connection[Any], migration: Migration) -> None:
    with connection.transaction():
        connection.execute(migration.sql)
        connection.execute(
            "insert into eec_schema (version, phase, name) values (%s, %s, %s)",
            (migration.version, migration.phase, migration.name),
        )


@contextmanager
def _session(dsn: str) -> Iterator[Connection[Any]]:
    timeout_s = StoreOptions().connect_timeout_ms // 1000
    try:
        with psycopg.connect(
            dsn, autocommit=True, application_name="ductor-stream migrate", connect_timeout=timeout_s,
            target_session_attrs="read-write",
        ) as connection:  # fmt: skip
            connection.execute(f"set lock_timeout = '{_LOCK_TIMEOUT}'".encode())
            yield connection
    except psycopg.errors.LockNotAvailable as error:
        raise StoreUnavailable(
            f"another session keeps locked what the migration needs, for over {_LOCK_TIMEOUT} (a table; or another `migrate` "
            f"is at work); nothing more was applied: {line(error)}"
        ) from error
    except psycopg.errors.DeadlockDetected as error:
        raise StoreUnavailable(
            f"{_TRIES} times the migration and another session waited for each other's rows, and Postgres ended it; nothing "
            f"more was applied: run `ductor-stream migrate` again at a quiet moment: {line(error)}"
        ) from error
    except psycopg.OperationalError as error:
        raise StoreUnavailable(f"Postgres cannot be reached: {line(error)}") from error
    except psycopg.Error as error:
        raise SchemaMismatch(f"the schema cannot be read or changed: {line(error)}") from error
