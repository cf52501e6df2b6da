"""Runs whose rows another session keeps locked: their inputs wait in the inbox, and no batch waits for their rows again.

The first batch that meets such a row has waited for it as long as ``lock_timeout`` says. From then on the row is only
looked at, without waiting, when the run's inputs come due: all those of one wait at the same time, in their order.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from ductor_stream.coordinator.work import Entry
from ductor_stream.ports import Clock, RunStore
from ductor_stream.telemetry.logs import get_logger
from ductor_stream.telemetry.metrics import Metrics

_log = get_logger(__name__)

_FIRST_MS = 500
"""A session that is about to commit is gone by then."""

_LONGEST_MS = 15_000
"""How late a run may hear that its row is free again."""


class _Wait(msgspec.Struct):
    """``own`` are inputs that no row carries: the owner's. ``woken`` says that all that waits was handed out."""

    partition: int
    ms: int
    until: int
    woken: bool = False
    own: list[Entry] = []


class LockedRuns:
    """Which runs are waited for, and until when (ms of Postgres's clock)."""

    def __init__(self, store: RunStore, clock: Clock, metrics: Metrics) -> None:
        self._store, self._clock, self._metrics = store, clock, metrics
        self._waits: dict[str, _Wait] = {}

    def found(self, entries: Sequence[Entry], run_ids: Iterable[str]) -> None:
        """The rows of these runs are locked by somebody: their inputs wait, longer each time."""
        partitions = {entry.run_id: entry.partition for entry in entries}
        for run_id in run_ids & partitions.keys():
            last = self._waits.get(run_id)
            ms = _FIRST_MS if last is None else min(2 * last.ms, _LONGEST_MS)
            own = last.own if last is not None else []
            self._waits[run_id] = _Wait(partitions[run_id], ms, self._clock.now() + ms, own=own)
            _log.warning("another session keeps the row of a run locked", run_id=run_id, again_in_ms=ms)

    def among(self, entries: Sequence[Entry]) -> frozenset[str]:
        """Those runs of a new batch that must not be in it. Raises StoreUnavailable.

        A wait whose time has passed since ``come_due`` looked is not over: what waits is not in this batch, and comes first.
        """
        if not self._waits:
            return frozenset()
        known = {entry.run_id for entry in entries} & self._waits.keys()
        due = {run_id for run_id in known if self._waits[run_id].woken}
        locked = due - self._store.unlocked(sorted(due)) if due else set()
        for run_id in due - locked:
            del self._waits[run_id]
        if locked:
            self._metrics.conflicts.inc(len(locked))
            self.found(entries, locked)
        return frozenset(known - due | locked)

    def until(self, run_id: str) -> int | None:
        """When the run's inputs are to come again, if it is waited for."""
        wait = self._waits.get(run_id)
        return wait.until if wait is not None else None

    def keep(self, entries: Iterable[Entry]) -> None:
        """Inputs of the owner's own, that no row carries."""
        for entry in entries:
            wait = self._waits.get(entry.run_id)
            if wait is not None and all(entry.input != other.input for other in wait.own):
                wait.own.append(entry)

    def come_due(self) -> tuple[set[int], list[Entry]]:
        """Partitions whose inbox has inputs that have waited long enough, and such inputs as are in no inbox."""
        if not self._waits:
            return set(), []
        now = self._clock.now()
        due = [wait for wait in self._waits.values() if wait.until <= now and not wait.woken]
        entries = [entry for wait in due for entry in wait.own]
        for wait in due:
            wait.woken, wait.own = True, []
        return {wait.partition for wait in due}, entries

    def forget(self, partitions: Iterable[int]) -> None:
        """These partitions are no longer ours: their next owner finds out for itself."""
        gone = frozenset(partitions)
        self._waits = {run_id: wait for run_id, wait in self._waits.items() if wait.partition not in gone}
