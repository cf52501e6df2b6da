"""Runs with inputs that wait in the inbox: newer ones wait behind them, so that each run hears all in its order.

They wait because another session keeps the run's row locked, because its version check was lost too often in a row, or
because this release cannot read it. What waits keeps its place in the inbox, what comes meanwhile is put behind it; the
wait is over when its time has come and the inbox has been read to its end.

The first batch that meets a locked row has waited for it as long as ``lock_timeout`` says. From then on the row is only
looked at, without waiting, when the run's inputs come due.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from ductor_stream.coordinator.work import Entry, Work
from ductor_stream.ports import Clock, RunStore
from ductor_stream.telemetry.logs import get_logger
from ductor_stream.telemetry.metrics import Metrics

_log = get_logger(__name__)

_FIRST_MS = 500
"""A session that is about to commit is gone by then."""

_LONGEST_MS = 15_000
"""How late a run may hear that its row is free again."""


class Waiting(NamedTuple):
    """Runs of a new batch that inputs wait for: not in it at all (``out``); in it with nothing but what it has from the
    inbox (``behind``); in it with everything, since their wait ends with it (``over``)."""

    out: frozenset[str] = frozenset()
    behind: frozenset[str] = frozenset()
    over: frozenset[str] = frozenset()


class _Wait(msgspec.Struct):
    """``ms`` is how long it waits for a lock (0: none is known of)."""

    partition: int
    until: int
    ms: int = 0


class Waits:
    """Which runs are waited for, and until when (ms of Postgres's clock)."""

    def __init__(self, store: RunStore, clock: Clock, metrics: Metrics) -> None:
        self._store, self._clock, self._metrics = store, clock, metrics
        self._waits: dict[str, _Wait] = {}

    def found(self, entries: Sequence[Entry], run_ids: Iterable[str]) -> None:
        """The rows of these runs are locked by somebody: their inputs wait, longer each time."""
        partitions = {entry.run_id: entry.partition for entry in entries}
        for run_id in run_ids & partitions.keys():
            last = self._waits.get(run_id)
            ms = min(2 * last.ms, _LONGEST_MS) if last is not None and last.ms else _FIRST_MS
            self._waits[run_id] = _Wait(partitions[run_id], self._clock.now() + ms, ms)
            _log.warning("another session keeps the row of a run locked", run_id=run_id, again_in_ms=ms)

    def put_behind(self, waiting: Mapping[str, tuple[int, int]]) -> None:
        """Inputs of these runs wait in the inbox by now: run id -> partition, until when."""
        for run_id, (partition, until) in waiting.items():
            wait = self._waits.setdefault(run_id, _Wait(partition, until))
            wait.until = max(wait.until, until)

    def among(self, work: Work) -> Waiting:
        """Which runs of a new batch are waited for. Raises StoreUnavailable.

        A wait whose time has passed since the inbox was read is not over: what waits is not in this batch, and comes first.
        """
        if not self._waits:
            return Waiting()
        read = {run_id: work.inbox_read.get(wait.partition, (-1, False)) for run_id, wait in self._waits.items()}
        awake = {run_id for run_id, wait in self._waits.items() if wait.until <= read[run_id][0]}
        known = {entry.run_id for entry in work.entries} & self._waits.keys()
        looked_at = sorted(run_id for run_id in known & awake if self._waits[run_id].ms)
        locked = set(looked_at) - self._store.unlocked(looked_at) if looked_at else set()
        if locked:
            self._metrics.conflicts.inc(len(locked))
            self.found(work.entries, locked)
        over = frozenset(run_id for run_id in awake - locked if read[run_id][1])
        for run_id in over:
            del self._waits[run_id]
        return Waiting(frozenset(known - awake | locked), frozenset(known & awake - locked - over), over)

    def until(self, run_id: str) -> int | None:
        """When the run's inputs are to come again, if it is waited for."""
        wait = self._waits.get(run_id)
        return wait.until if wait is not None else None

    def come_due(self) -> set[int]:
        """Partitions whose inbox has inputs that have waited long enough."""
        if not self._waits:
            return set()
        now = self._clock.now()
        return {wait.partition for wait in self._waits.values() if wait.until <= now}

    def forget(self, partitions: Iterable[int]) -> None:
        """These partitions are no longer ours: their next owner finds out for itself."""
        gone = frozenset(partitions)
        self._waits = {run_id: wait for run_id, wait in self._waits.items() if wait.partition not in gone}
