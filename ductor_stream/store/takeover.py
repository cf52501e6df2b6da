"""Taking a partition: raise its epoch, then read what is there in a new statement (protocol 1, 6)."""

from __future__ import annotations

from typing import Any

import psycopg
from psycopg import Connection

from ductor_stream.errors import OwnershipLost, StoreUnavailable
from ductor_stream.ports import INBOUND, UNREAD, OpenAttempt, Taken
from ductor_stream.store.columns import Int2, Int4, Int8, Int8s, Text
from ductor_stream.store.connection import OWNER
from ductor_stream.store.queries import sql

TRIES = 5
"""How often a take waits for the lock (``lock_timeout_ms`` each time) before it gives up: the first wait may be behind
an honest commit, the second behind the session that was just told to end, the rest is for a server under load."""


def take(connection: Connection[Any], ns: int, partition: int, token: str) -> Taken:
    """See ``RunStore.take``. Driver errors pass: a take whose outcome is unknown is simply done again."""
    key: dict[str, Any] = {"ns": Int2(ns), "partition": Int4(partition), "token": Text(token)}
    epoch, clean, last_token, suspect, deaths = _raise_epoch(connection, key)
    # A statement of its own, begun after the wait for the row is over: it sees all that the last owner committed.
    row = connection.execute(sql("read_partition"), key | {"epoch": Int8(epoch)}, binary=True).fetchone()
    if row is None:
        raise OwnershipLost(frozenset({partition}))  # overtaken between the raise and this
    offsets, topic_ids, outbox_seq, now, seqs, records = row
    return Taken(
        partition=partition,
        token=token,
        epoch=epoch,
        offsets=tuple(offsets),
        topic_ids=topic_ids,
        outbox=list(zip(seqs, records, strict=True)),
        outbox_seq=outbox_seq,
        open_attempts=_open_attempts(connection, key),
        clean=clean,
        last_token=last_token,
        suspect=suspect,
        deaths=deaths,
        now=now,
    )


def _raise_epoch(connection: Connection[Any], key: dict[str, Any]) -> tuple[int, bool, str, str | None, int]:
    holder = "another session"
    for _ in range(TRIES):
        try:
            row = connection.execute(sql("raise_epoch"), key, binary=True).fetchone()
        except psycopg.errors.LockNotAvailable:
            holder = _end_blocker(connection, key) or holder
            continue
        if row is not None:
            return int(row[0]), bool(row[1]), str(row[2]), row[3], int(row[4])
        unread = Int8s([UNREAD] * len(INBOUND))
        try:
            connection.execute(sql("create_partition"), key | {"offsets": unread})
        except psycopg.errors.LockNotAvailable:
            continue
    raise StoreUnavailable(f"partition {key['partition'].value} stays locked by {holder}")


def _end_blocker(connection: Connection[Any], key: dict[str, Any]) -> str | None:
    rows = connection.execute(sql("end_blocker"), key | {"ours": Text(OWNER)}, binary=True).fetchall()
    for pid, name, _ in rows:
        return f"session {pid} ({name or 'without application_name'})"
    return None


def _open_attempts(connection: Connection[Any], key: dict[str, Any]) -> list[OpenAttempt]:
    rows = connection.execute(sql("list_open_attempts"), key, binary=True)
    return [OpenAttempt(key["partition"].value, *row) for row in rows]
