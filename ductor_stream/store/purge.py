"""``Purger``: deletes runs that have ended, with all that was kept for them. The one writer beside the owners.

A run that is purged is as if it had never been: its ids are forgotten, so a request for it that is delivered once more
would begin it anew. Nothing here protects from that; whoever calls keeps to runs that ended longer ago than any topic
keeps its records.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec
import psycopg

from ductor_stream.store.columns import Int2, Int8, Moment, Text, Texts
from ductor_stream.store.connection import StoreOptions, open_purger, translated
from ductor_stream.store.queries import sql

_PAGE = 500
"""Runs in one transaction, at most: an owner that wants one of them waits for as long as that takes."""

_TRANSITIONS = 20_000
"""And at most so many transitions, or a single run: long histories take their time."""

_UNKNOWN = 0  # no namespace has this number: it has no rows


class Purged(msgspec.Struct, frozen=True):
    """What was deleted."""

    runs: int = 0
    transitions: int = 0
    attempts: int = 0
    messages: int = 0
    """Ids of starts, signals and commands."""

    def __add__(self, other: Purged) -> Purged:
        pairs = zip(msgspec.structs.astuple(self), msgspec.structs.astuple(other), strict=True)
        return Purged(*(mine + theirs for mine, theirs in pairs))


class Purger:
    """Works in one namespace, over a connection of its own. Owners may be at work meanwhile."""

    def __init__(self, dsn: str, namespace: str, options: StoreOptions | None = None) -> None:
        """Connect. A namespace that does not exist has nothing to purge. Raises StoreUnavailable, SchemaMismatch."""
        self._connection = open_purger(dsn, options or StoreOptions())
        rows = self._rows("find_namespace", {"name": Text(namespace)})
        self._ns = Int2(rows[0][0] if rows else _UNKNOWN)

    def now(self) -> int:
        """Postgres's clock in ms. Raises StoreUnavailable."""
        return int(self._rows("read_clock", {})[0][0])

    def count(self, before: int) -> list[tuple[str, str, int]]:
        """(workflow, status, runs) of those that ended before that moment (ms). Raises StoreUnavailable."""
        rows = self._rows("count_closed", {"ns": self._ns, "before": Moment(before)})
        return [(workflow, status, runs) for workflow, status, runs in rows]

    def batches(self, before: int) -> Iterator[Purged]:
        """Delete the runs that ended before that moment (ms), the youngest first; yields after each transaction.

        Each transaction lands as a whole or not at all, so that it may be stopped and called again at any time. A
        run that somebody else holds at this moment is passed over. Raises StoreUnavailable.
        """
        place: tuple[int, str] = (before, "")
        while (found := self._batch(before, place)) is not None:
            purged, place = found
            yield purged

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def _batch(self, before: int, place: tuple[int, str]) -> tuple[Purged, tuple[int, str]] | None:
        page = {"before": Moment(before), "page_at": Moment(place[0]), "page_id": Text(place[1]), "limit": Int8(_PAGE)}
        with self._asking(), self._connection.transaction():
            held = _within(
                self._connection.execute(sql("hold_closed"), {"ns": self._ns, **page}, binary=True).fetchall()
            )
            if not held:
                return None
            gone = {"ns": self._ns, "run_ids": Texts([run_id for run_id, _, _ in held])}
            row = self._connection.execute(sql("drop_closed"), gone, binary=True).fetchone()
            assert row is not None
        last, _, started_at = held[-1]
        return Purged(*row), (started_at, last)

    def _rows(self, name: str, params: Mapping[str, Any]) -> list[tuple[Any, ...]]:
        with self._asking():
            return self._connection.execute(sql(name), params, binary=True).fetchall()

    @contextmanager
    def _asking(self) -> Iterator[None]:
        try:
            yield
        except psycopg.Error as error:
            raise translated(error) from error


def _within(held: Sequence[tuple[Any, ...]]) -> list[tuple[str, int, int]]:
    """As many of these runs as may go in one transaction."""
    chosen: list[tuple[str, int, int]] = []
    transitions = 0
    for run_id, record_version, started_at in held:
        transitions += record_version
        if chosen and transitions > _TRANSITIONS:
            break
        chosen.append((run_id, record_version, started_at))
    return chosen
