"""What comes due without any message: a heap of runs by their ``wake_at``, bounded by a horizon.

A run's row holds when it must be looked at; the owner keeps those that are near. What lies further away
is found by scanning the partition's open runs again, every half horizon.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable

from ductor_stream.ports import RunStore

_PAGE = 5_000
"""Runs per page of a scan: about 0.5 MB, a few ms."""


class Timers:
    """Due runs of the owned partitions. Times are ms of Postgres's clock."""

    def __init__(self, store: RunStore, horizon_ms: int) -> None:
        self._store = store
        self._horizon_ms = horizon_ms
        self._heap: list[tuple[int, int, str]] = []
        self._scheduled: dict[str, int] = {}
        self._scanned_until: dict[int, int] = {}

    def open(self, partition: int, now: int) -> None:
        """Read what is due within the horizon of a partition that was just taken."""
        self._scan(partition, now)

    def close(self, partitions: Iterable[int]) -> None:
        """Forget partitions."""
        gone = frozenset(partitions)
        for partition in gone:
            self._scanned_until.pop(partition, None)
        for _, partition, run_id in self._heap:
            if partition in gone:
                self._scheduled.pop(run_id, None)
        self._heap = [entry for entry in self._heap if entry[1] not in gone]
        heapq.heapify(self._heap)

    def set(self, partition: int, run_id: str, at: int | None) -> None:
        """The run is to be looked at then; None: not at all."""
        known = self._scheduled.get(run_id)
        if at == known:
            return
        if at is None:
            self._scheduled.pop(run_id, None)
        elif at <= self._scanned_until.get(partition, 0):
            self._scheduled[run_id] = at
            heapq.heappush(self._heap, (at, partition, run_id))
        else:
            self._scheduled.pop(run_id, None)

    def due(self, now: int, limit: int) -> list[tuple[int, int, str]]:
        """Take what is due: (due time, partition, run id), earliest first."""
        found: list[tuple[int, int, str]] = []
        while self._heap and self._heap[0][0] <= now and len(found) < limit:
            entry = heapq.heappop(self._heap)
            if self._scheduled.get(entry[2]) == entry[0]:
                del self._scheduled[entry[2]]
                found.append(entry)
        return found

    def next_at(self) -> int | None:
        """When something is due."""
        return self._heap[0][0] if self._heap else None

    def refresh(self, now: int) -> None:
        """Scan partitions whose horizon is half used up."""
        for partition, until in list(self._scanned_until.items()):
            if until - now < self._horizon_ms // 2:
                self._scan(partition, now)

    def _scan(self, partition: int, now: int) -> None:
        until = now + self._horizon_ms
        self._scanned_until[partition] = until
        after = ""
        while True:
            page = self._store.due_runs(partition, until, _PAGE, after)
            for run_id, at in page:
                self.set(partition, run_id, at)
            if len(page) < _PAGE:
                return
            after = page[-1][0]
