"""One connection to Postgres as an owner needs it: settings that are ours, and errors in our words.

Errors of the driver end here: a caller sees what landed (nothing, or unknown), not how the socket broke.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

import msgspec
import psycopg
from psycopg import Connection

from ductor_stream.errors import InvariantViolation, SchemaMismatch, StoreUnavailable
from ductor_stream.store.columns import Texts, register
from ductor_stream.store.queries import sql

RV = TypeVar("RV")
OWNER = "ductor-stream owner"
"""How the sessions of owners begin their application_name: only those may be ended by a take-over (protocol 6)."""

NAME_LIMIT = 63
"""Postgres cuts an application_name here."""


class StoreOptions(msgspec.Struct, frozen=True):
    """Bounds of the store's session, in milliseconds.

    ``lock_timeout_ms`` bounds each wait for a lock, also a take-over's before it ends the blocker's session.
    ``answer_timeout_ms`` is how long the client waits for any answer, whatever the network says: it is above
    ``statement_timeout_ms``, so that a server that lives answers first.
    """

    connect_timeout_ms: int = 5_000
    lock_timeout_ms: int = 3_000
    statement_timeout_ms: int = 30_000
    idle_in_transaction_timeout_ms: int = 10_000
    answer_timeout_ms: int = 35_000
    ping_timeout_ms: int = 3_000
    """For the one question that costs nothing: with five seconds between two, a frozen server is told within eight."""
    dead_peer_timeout_ms: int = 9_000
    """After how long without a sign of the peer's kernel the connection is given up."""


class Unanswered(psycopg.OperationalError):
    """The server did not answer in time; the connection is closed."""


class OwnedConnection(Connection[Any]):
    """A connection whose every wait has a bound: a proxy in between may keep a dead server's socket alive."""

    answer_timeout_s: float = 35.0

    @contextmanager
    def answering_within(self, seconds: float) -> Iterator[None]:
        """Inside, no answer is waited for any longer."""
        before, self.answer_timeout_s = self.answer_timeout_s, seconds
        try:
            yield
        finally:
            self.answer_timeout_s = before

    def wait(self, gen: Generator[Any, Any, RV], *args: Any, **kwargs: Any) -> RV:
        """Drive one operation to its end. Raises Unanswered, then the connection is closed."""
        try:
            return super().wait(_bounded(gen, self.answer_timeout_s), *args, **kwargs)
        except Unanswered:
            self.pgconn.finish()
            raise


def _bounded(gen: Generator[Any, Any, RV], limit_s: float) -> Generator[Any, Any, RV]:
    deadline = time.monotonic() + limit_s
    answer: Any = None
    while True:
        try:
            wanted = gen.send(answer)
        except StopIteration as end:
            result: RV = end.value
            return result
        answer = yield wanted
        if not answer and time.monotonic() > deadline:
            raise Unanswered(f"no answer from Postgres for {limit_s:.0f} s")


def _arguments(options: StoreOptions, application_name: str, target: str) -> dict[str, Any]:
    probe_s = max(1, options.dead_peer_timeout_ms // 3000)
    return {
        "autocommit": True,
        "prepare_threshold": 0,
        "application_name": application_name[:NAME_LIMIT],
        "target_session_attrs": target,
        "connect_timeout": max(2, options.connect_timeout_ms // 1000),
        "tcp_user_timeout": options.dead_peer_timeout_ms,
        "keepalives": 1,
        "keepalives_idle": probe_s,
        "keepalives_interval": probe_s,
        "keepalives_count": 2,
    }


def _bounds(options: StoreOptions) -> dict[str, str]:
    return {
        "lock_timeout": f"{options.lock_timeout_ms}ms",
        "statement_timeout": f"{options.statement_timeout_ms}ms",
        "idle_in_transaction_session_timeout": f"{options.idle_in_transaction_timeout_ms}ms",
    }


_WRITER_SETTINGS = {
    "synchronous_commit": "on",
    "default_transaction_isolation": "read committed",
    "jit": "off",
    # Statements are prepared once, and their plans must not depend on how full the tables were then: every look-up
    # is a handful of keys against an index, one by one.
    "plan_cache_mode": "force_generic_plan",
    "enable_seqscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "enable_bitmapscan": "off",
}

_READER_SETTINGS = {"default_transaction_read_only": "on"}


def open_owner(dsn: str, options: StoreOptions, label: str) -> OwnedConnection:
    """Connect as an owner: to a server that can write, under a name that a take-over knows. Raises StoreUnavailable."""
    return _open(dsn, _arguments(options, owner_name(label), "read-write"), options, _WRITER_SETTINGS)


def open_reader(dsn: str, options: StoreOptions) -> OwnedConnection:
    """Connect to read only; a replica will do. Raises StoreUnavailable."""
    return _open(dsn, _arguments(options, "ductor-stream reader", "any"), options, _READER_SETTINGS)


def open_purger(dsn: str, options: StoreOptions) -> OwnedConnection:
    """Connect to delete what is done with: as an owner would, but owning nothing. Raises StoreUnavailable."""
    return _open(dsn, _arguments(options, "ductor-stream purge", "read-write"), options, _WRITER_SETTINGS)


def owner_name(label: str) -> str:
    """The application_name of an owner's session: what it is, of which namespace, and where it runs."""
    return f"{OWNER} {label} {socket.gethostname()}:{os.getpid()}"[:NAME_LIMIT]


def _open(
    dsn: str, arguments: Mapping[str, Any], options: StoreOptions, settings: Mapping[str, str]
) -> OwnedConnection:
    connection: OwnedConnection | None = None
    # Set after connecting, so that they win over the connection string (protocol 29).
    own = {**_bounds(options), **settings}
    try:
        connection = OwnedConnection.connect(dsn, **arguments)
        connection.answer_timeout_s = options.answer_timeout_ms / 1000
        register(connection)
        apply(connection, own)
    except psycopg.Error as error:
        if connection is not None:
            connection.close()
        raise StoreUnavailable(f"Postgres cannot be reached: {line(error)}") from error
    return connection


def apply(connection: Connection[Any], settings: Mapping[str, str]) -> None:
    """Set these for the rest of the session."""
    names, values = Texts(list(settings)), Texts(list(settings.values()))
    connection.execute(sql("own_session"), {"names": names, "values": values})


def line(error: BaseException) -> str:
    """An error of the driver in one line."""
    return " ".join(str(error).split()) or type(error).__name__


def lost(connection: Connection[Any]) -> bool:
    """Whether the connection can no longer be used."""
    return connection.closed or connection.broken


def translated(error: psycopg.Error) -> Exception:
    """What a failed statement means where the question of what landed does not arise (reads, or a clear abort)."""
    state = error.sqlstate or ""
    if state in ("42P01", "42703", "3F000"):
        return SchemaMismatch(f"{line(error)}: run `ductor-stream migrate`")
    if not state and not isinstance(error, psycopg.OperationalError | psycopg.InterfaceError):
        return InvariantViolation(f"the driver was used wrongly: {line(error)}")
    # 08 connection, 0A a cached plan after a migration, 25 read-only after a demotion, 40 deadlock, 53 resources,
    # 55 locks, 57 shutdown or time-out, 58 disk: another connection, or another moment, mends it.
    if not state or state[:2] in ("08", "0A", "25", "40", "53", "55", "57", "58"):
        return StoreUnavailable(f"Postgres refused: {line(error)}")
    if state[:2] in ("28", "42"):
        return StoreUnavailable(f"Postgres does not let us: {line(error)}")
    return InvariantViolation(f"Postgres said {state}: {line(error)}")
