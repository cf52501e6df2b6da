"""``RunReader``: what people, programs and checks read of a namespace. It never writes (R1)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Self

import psycopg

from ductor_stream.engine.state import decode_records
from ductor_stream.ports import Folded
from ductor_stream.protocol.inbox import run_of_row
from ductor_stream.store.columns import Bytea, Int2, Int4, Int8, Moment, Text, Texts, storable
from ductor_stream.store.connection import StoreOptions, lost, open_reader, translated
from ductor_stream.store.queries import sql
from ductor_stream.store.rows import (
    AttemptLine,
    Beat,
    ConsistencyReport,
    Declared,
    HistoryEntry,
    Offence,
    OpenRun,
    OpenVersion,
    PutOff,
    RunRow,
)

_FIRST_POLL_S = 0.02
_LAST_POLL_S = 0.5
_GROWTH = 1.5
"""``wait_closed`` looks after 20 ms, then ever more rarely, down to twice a second: a thousand waiting clients cost
two thousand lookups by key a second."""

_UNKNOWN = 0  # no namespace has this number: it has no rows
_ORPHAN = "transitions without a run"
_WAITING = 200
"""Inputs of a run that ``put_off`` looks through: each comes with what it says."""
_REPORTED = 100
"""How many offenders a consistency report names per check."""


class RunReader:
    """Reads one namespace over a connection of its own, read-only: a replica serves as well."""

    def __init__(
        self,
        dsn: str,
        namespace: str,
        options: StoreOptions | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Connect. ``sleep`` (seconds) is what ``wait_closed`` waits with. Raises StoreUnavailable.

        A namespace that no coordinator has started in yet reads as an empty one.
        """
        self._dsn = dsn
        self._name = namespace
        self._number = _UNKNOWN
        self._options = options or StoreOptions()
        self._sleep = sleep
        self._connection = open_reader(dsn, self._options)

    @contextmanager
    def _asking(self) -> Iterator[None]:
        if lost(self._connection):
            self._connection = open_reader(self._dsn, self._options)
        try:
            yield
        except psycopg.Error as error:
            raise translated(error) from error

    def _rows(self, name: str, params: Mapping[str, Any]) -> list[tuple[Any, ...]]:
        with self._asking():
            return self._connection.execute(sql(name), params, binary=True).fetchall()

    def _rows_of(self, run_id: str, name: str, **params: Any) -> list[tuple[Any, ...]]:
        if not storable(run_id):
            return []  # Postgres cannot hold such an id, so it is nobody's
        return self._rows(name, self._keyed(run_id=Text(run_id), **params))

    def _keyed(self, **params: Any) -> dict[str, Any]:
        if self._number == _UNKNOWN:
            rows = self._rows("find_namespace", {"name": Text(self._name)})
            self._number = rows[0][0] if rows else _UNKNOWN
        return {"ns": Int2(self._number), **params}

    def find_run(self, run_id: str) -> RunRow | None:
        """The run of that id, None if there is none. Raises StoreUnavailable."""
        rows = self._rows_of(run_id, "find_run")
        return RunRow(*rows[0]) if rows else None

    def list_runs(
        self,
        status: str | None = None,
        workflow: str | None = None,
        limit: int = 50,
        before: RunRow | None = None,
    ) -> list[RunRow]:
        """Runs, newest first; ``before`` is the last run of the page before. Raises StoreUnavailable."""
        place = {
            "before_at": Moment(before.started_at if before else None),
            "before_id": Text(before.run_id if before else None),
        }
        wanted = {"status": Text(status), "workflow": Text(workflow), "limit": Int8(limit)}
        return [RunRow(*row) for row in self._rows("list_runs", self._keyed(**wanted, **place))]

    def open_runs(self, limit: int) -> list[OpenRun]:
        """The newest open runs. Raises StoreUnavailable."""
        return [OpenRun(*row) for row in self._rows("list_newest_open_runs", self._keyed(limit=Int8(limit)))]

    def attempts(self, run_id: str) -> list[AttemptLine]:
        """The attempts of a run in the order of their dispatch. Raises StoreUnavailable."""
        return [AttemptLine(*row) for row in self._rows_of(run_id, "list_attempts")]

    def beats(self, run: RunRow) -> list[Beat]:
        """What was heard of the run's attempts in flight. Raises StoreUnavailable."""
        rows = self._rows_of(run.run_id, "list_open_attempts_of_run", partition=Int4(run.partition))
        return [Beat(*row) for row in rows]

    def put_off(self, run: RunRow) -> PutOff | None:
        """What waits for the run in its partition's inbox, None if nothing does; of more than ``_WAITING`` so many.

        Raises StoreUnavailable, also where the role may not read the inbox (``schema grants``).
        """
        about = {"partition": Int4(run.partition), "run_id": Bytea(run.run_id.encode()), "limit": Int8(_WAITING)}
        rows = self._rows("list_put_off_of_run", self._keyed(**about))
        mine = [row[2:] for row in rows if run_of_row(*row[:2]) == run.run_id]
        if not mine:
            return None
        until = max(not_before or 0 for not_before, _ in mine)
        return PutOff(len(mine), max(tries for _, tries in mine), until or None)

    def history(self, run_id: str, after: int = 0, limit: int = 10_000) -> list[HistoryEntry]:
        """Transitions with a record_version above ``after``, in order; the oldest may be folded (see ``folded``).

        Raises UnknownFormat when a newer release wrote them, StoreUnavailable.
        """
        rows = self._rows_of(run_id, "list_history", after=Int8(after), limit=Int8(limit))
        return [_entry(*row) for row in rows]

    def counts(self) -> dict[tuple[str, str], int]:
        """How many runs there are by (workflow, status), as the batches kept count. Raises StoreUnavailable."""
        return {(workflow, status): count for workflow, status, count in self._rows("read_counts", self._keyed())}

    def open_versions(self) -> list[OpenVersion]:
        """Open runs by workflow, version and status. Raises StoreUnavailable."""
        return [OpenVersion(*row) for row in self._rows("count_open_versions", self._keyed())]

    def declared(self) -> list[Declared]:
        """The workflow code that coordinators have served, oldest first. Raises StoreUnavailable."""
        return [Declared(*row) for row in self._rows("list_declared", self._keyed())]

    def folded(self, run_id: str) -> Folded | None:
        """What the oldest part of a run's history was folded into, None where all of it is there.

        Raises StoreUnavailable.
        """
        rows = self._rows_of(run_id, "find_folded")
        return Folded(*rows[0]) if rows else None

    def wait_closed(self, run_id: str, timeout_s: float) -> RunRow | None:
        """Wait until the run has ended; None when it has not (or is not known) within ``timeout_s`` seconds.

        Raises StoreUnavailable.
        """
        deadline = time.monotonic() + timeout_s
        pause = _FIRST_POLL_S
        while True:
            rows = self._rows_of(run_id, "find_closed")
            if rows and rows[0][0]:
                return self.find_run(run_id)
            left = deadline - time.monotonic()
            if left <= 0:
                return None
            self._sleep(min(pause, left))
            pause = min(pause * _GROWTH, _LAST_POLL_S)

    def consistency(self, expected: Iterable[str] = ()) -> ConsistencyReport:
        """Check the whole namespace; ``expected`` are run ids that must be known. Reads every row of it.

        Raises StoreUnavailable, also when the namespace is too large for the statement timeout.
        """
        bound = {"limit": Int8(_REPORTED)}
        found = [Offence(*row) for row in self._rows("check_versions", self._keyed(**bound))]
        found += [Offence(*row) for row in self._rows("check_attempts", self._keyed(**bound))]
        missing = self._rows(
            "check_missing", self._keyed(run_ids=Texts([run_id for run_id in expected if storable(run_id)]), **bound)
        )
        orphans = {offence.run_id for offence in found if offence.check == _ORPHAN}
        runs, open_runs, transitions, attempts, late_results = self._rows("count_runs", self._keyed())[0]
        return ConsistencyReport(
            runs=runs,
            open_runs=open_runs,
            transitions=transitions,
            attempts=attempts,
            late_results=late_results,
            lost=sorted(orphans.union(run_id for (run_id,) in missing)),
            advanced_twice=[offence for offence in found if offence.check != _ORPHAN],
        )

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _entry(record_version: int, execution: int, at: int, epoch: int, txid: int, records: bytes) -> HistoryEntry:
    return HistoryEntry(record_version, execution, at, epoch, txid, decode_records(records))
