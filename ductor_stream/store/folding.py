"""Folding the oldest transitions of a run into its summary (R10). Every step is by key, and fenced like a commit."""

from __future__ import annotations

from typing import Any

import msgspec
import psycopg
from psycopg import Connection

from ductor_stream.ports import Foldable, Folded
from ductor_stream.store.columns import Int2, Int4, Int8, Moment, Text
from ductor_stream.store.queries import sql


def foldable(connection: Connection[Any], ns: int, run_id: str, below: int, limit: int, size: int) -> Foldable:
    """See ``RunStore.foldable``."""
    key: dict[str, Any] = {"ns": Int2(ns), "run_id": Text(run_id)}
    row = connection.execute(sql("find_folded"), key, binary=True).fetchone()
    folded = Folded(*row) if row is not None else Folded()
    page = key | {"after": Int8(folded.upto), "below": Int8(below), "limit": Int8(limit), "bytes": Int8(size)}
    return Foldable(folded, connection.execute(sql("list_foldable"), page, binary=True).fetchall())


def drop_attempts(
    connection: Connection[Any], ns: int, fence: tuple[int, str, int], run_id: str, execution: int, limit: int
) -> int:
    """See ``RunStore.drop_attempts``."""
    params = _fenced(ns, fence, run_id) | {"execution": Int4(execution), "limit": Int8(limit)}
    row = connection.execute(sql("drop_attempts"), params, binary=True).fetchone()
    assert row is not None
    return int(row[0])


def _fenced(ns: int, fence: tuple[int, str, int], run_id: str) -> dict[str, Any]:
    partition, token, epoch = fence
    return {
        "ns": Int2(ns),
        "partition": Int4(partition),
        "token": Text(token),
        "epoch": Int8(epoch),
        "run_id": Text(run_id),
    }


def fold(
    connection: Connection[Any], ns: int, fence: tuple[int, str, int], run_id: str, before: int, folded: Folded
) -> bool:
    """See ``RunStore.fold``."""
    params = _fenced(ns, fence, run_id) | {
        "before": Int8(before),
        "upto": Int8(folded.upto),
        "execution": Int4(folded.execution),
        "first_at": Moment(folded.first_at),
        "last_at": Moment(folded.last_at),
        "counts": Text(msgspec.json.encode(folded.counts).decode()),
    }
    try:
        connection.execute(sql("fold"), params)
    except (psycopg.errors.DivisionByZero, psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected):
        return False  # a deadlock is one with a purge of the run, which takes the rows in another order
    return True
