"""``Purger``: deletes runs that have ended, with all that was kept for them, and what is kept for no run at all.

The one writer beside the owners. Kept for no run are ids of messages that waited for a run which never came, and values of
dead letters that were too large for their records.

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

from ductor_stream.errors import StoreUnavailable
from ductor_stream.store.columns import Int2, Int8, Moment, Text, Texts
from ductor_stream.store.connection import StoreOptions, open_purger, translated
from ductor_stream.store.queries import sql

_PAGE = 500
"""Runs in one transaction, at most: an owner that wants one of them waits for as long as that takes."""

_TRANSITIONS = 20_000
"""And at most so many transitions, or a single run: long histories take their time."""

_IDS = 5_000
_PAYLOADS = 100
"""Likewise of what belongs to no run; a payload may have megabytes."""

_FIRST = 0
"""The beginning of time, in ms."""

_UNKNOWN = 0  # no namespace has this number: it has no rows


class Purged(msgspec.Struct, frozen=True):
    """What was deleted."""

    runs: int = 0
    transitions: int = 0
    attempts: int = 0
    messages: int = 0
    """Ids of starts, signals and commands."""
    payloads: int = 0
    """Values of dead letters."""

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

    def count_leftovers(self, before: int, letters_before: int) -> tuple[int, int]:
        """What belongs to no run: ids of messages that waited in vain until before the first moment (ms), and values of
        dead letters from before the second one; how many of each. Raises StoreUnavailable.
        """
        moments = {"before": Moment(before), "letters_before": Moment(letters_before)}
        ((messages, payloads),) = self._rows("count_left_over", {"ns": self._ns, **moments})
        return messages, payloads

    def batches(self, before: int) -> Iterator[Purged]:
        """Delete the runs that ended before that moment (ms), the youngest first; yields after each transaction.

        Each transaction lands as a whole or not at all, so that it may be stopped and called again at any time. A
        run that somebody else holds at this moment is passed over. Raises StoreUnavailable.
        """
        place, page = (before, ""), _PAGE
        while True:
            try:
                found = self._batch(before, place, page)
            except StoreUnavailable as error:
                # Wide runs: their attempts and messages are not known before they are counted.
                if page == 1 or not isinstance(error.__cause__, psycopg.errors.QueryCanceled):
                    raise
                page //= 2
                continue
            if found is None:
                return
            purged, place = found
            yield purged

    def leftover_batches(self, before: int, letters_before: int) -> Iterator[Purged]:
        """Likewise what belongs to no run: see ``count_leftovers``. Raises StoreUnavailable."""
        after: int | None = _FIRST
        while after is not None:
            waited = {"after": Moment(after), "before": Moment(before), "limit": Int8(_IDS)}
            ((messages, after),) = self._rows("drop_waited", {"ns": self._ns, **waited})
            yield Purged(messages=messages)
        payloads = _PAYLOADS
        while payloads == _PAYLOADS:
            stored = {"before": Moment(letters_before), "limit": Int8(_PAYLOADS)}
            ((payloads,),) = self._rows("drop_payloads", {"ns": self._ns, **stored})
            yield Purged(payloads=payloads)

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def _batch(self, before: int, place: tuple[int, str], limit: int) -> tuple[Purged, tuple[int, str]] | None:
        page = {"before": Moment(before), "page_at": Moment(place[0]), "page_id": Text(place[1]), "limit": Int8(limit)}
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
