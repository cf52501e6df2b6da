"""Dispatch: what committed ticks decided goes out, and what the broker has confirmed is remembered (protocol 10-13).

Each commit has one outbox row per partition; a row is done when the broker has acknowledged every record
of it and each SyncMatch attempt in it is recorded as finished (or has a row of its own). The next
commit drops rows up to the first that is not done: a gap-free prefix.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

import msgspec

from ductor_stream.coordinator.config import CoordinatorConfig
from ductor_stream.engine.ids import Fence
from ductor_stream.ports import Clock, EventLog, LocalWorkers, Outgoing, Undeliverable
from ductor_stream.telemetry.logs import get_logger
from ductor_stream.telemetry.metrics import Metrics

_log = get_logger(__name__)


class Row(msgspec.Struct):
    """One outbox row on its way. ``sync`` are the fences of SyncMatch attempts that it still answers for."""

    partition: int
    seq: int
    since: float
    size: int = 0
    """Bytes of its records."""
    acknowledged: bool = False
    sync: set[Fence] = set()

    @property
    def done(self) -> bool:
        """Whether nothing of the row needs to be redriven any more."""
        return self.acknowledged and not self.sync


class Dispatcher:
    """Keeps the unconfirmed rows of each owned partition, in order."""

    def __init__(
        self, config: CoordinatorConfig, log: EventLog, clock: Clock, metrics: Metrics, local: LocalWorkers | None
    ) -> None:
        self._config = config
        self._log, self._clock, self._metrics, self._local = log, clock, metrics, local
        self._rows: dict[int, deque[Row]] = {}
        self._confirmed: dict[int, int] = {}
        self._sync: dict[Fence, Row] = {}
        self._failed: list[tuple[int, Undeliverable]] = []
        self.crowd = 0.0
        """What ``crowding`` said last: may be read from any thread."""

    def open(self, partition: int, confirmed: int) -> None:
        """Begin to track a partition that was just taken."""
        self._rows[partition] = deque()
        self._confirmed[partition] = confirmed

    def close(self, partitions: Iterable[int]) -> None:
        """Forget partitions. Acknowledgements that still come for them have nobody to tell."""
        for partition in partitions:
            for row in self._rows.pop(partition, ()):
                for fence in row.sync:
                    self._sync.pop(fence, None)
            self._confirmed.pop(partition, None)
        self._failed = [(p, u) for p, u in self._failed if p in self._rows]

    def send(
        self, partition: int, seq: int, records: Sequence[Outgoing], sync: dict[Fence, Outgoing] | None = None
    ) -> None:
        """Dispatch a committed row (R4). ``sync`` are those of its records that run in this process."""
        size = sum(len(record.value) for record in (*records, *(sync or {}).values()))
        row = Row(partition, seq, self._clock.monotonic(), size, sync=set(sync or ()))
        self._rows[partition].append(row)
        if sync and self._local is not None:
            self._sync.update(dict.fromkeys(sync, row))
            self._local.run_all([(record.value, record.key, record.headers) for record in sync.values()])
        if records:
            self._log.produce(records, lambda failed: self._answered(partition, row, failed))
        else:
            row.acknowledged = True

    def send_again(self, records: Sequence[Outgoing], partition: int) -> Row:
        """Redrive records that have no row of their own (R5b); the row that is returned tells when they are there."""
        row = Row(partition, 0, self._clock.monotonic())
        self._log.produce(records, lambda failed: self._answered(partition, row, failed))
        return row

    def _answered(self, partition: int, row: Row, failed: Sequence[Undeliverable]) -> None:
        row.acknowledged = True
        self._metrics.dispatch_seconds.observe(self._clock.monotonic() - row.since)
        if failed and partition in self._rows:
            # The row counts as confirmed only together with what becomes of its failures: the next
            # commit takes both (``failures``), or lands neither.
            self._failed.extend((partition, one) for one in failed)

    def failures(self, owned: Iterable[int]) -> list[tuple[int, Undeliverable]]:
        """What the broker did not take of these partitions, since the last call. To be dealt with in the next commit."""
        ours = set(owned)
        failed = [f for f in self._failed if f[0] in ours]
        self._failed = [f for f in self._failed if f[0] not in ours]
        return failed

    def discharge(self, fences: Iterable[Fence]) -> None:
        """These SyncMatch attempts need no redrive any more: their end, or a row of their own, is committed."""
        for fence in fences:
            row = self._sync.pop(fence, None)
            if row is not None:
                row.sync.discard(fence)

    def in_process(self, fence: Fence) -> bool:
        """Whether the attempt runs by SyncMatch and its outbox row answers for it."""
        return fence in self._sync

    def slow_sync(self, older_than_s: float) -> list[tuple[Fence, int]]:
        """SyncMatch attempts (with their partition) that hold up the confirmation of their row for longer than that."""
        before = self._clock.monotonic() - older_than_s
        return [(fence, row.partition) for fence, row in self._sync.items() if row.since <= before]

    def confirmed(self, partition: int, discharged: frozenset[Fence] = frozenset()) -> int:
        """The last sequence number up to which everything is done, without a gap.

        ``discharged`` are SyncMatch attempts that the very commit discharges which is to say so.
        """
        rows = self._rows[partition]
        while rows and rows[0].done:
            self._confirmed[partition] = rows.popleft().seq
        found = self._confirmed[partition]
        for row in rows if discharged else ():
            if not (row.acknowledged and row.sync <= discharged):
                break
            found = row.seq
        return found

    def unconfirmed(self) -> int:
        """The most rows that any partition has on their way."""
        for partition in self._rows:
            self.confirmed(partition)
        return max(map(len, self._rows.values()), default=0)

    def crowding(self) -> float:
        """How near what is unconfirmed has come to its bounds (protocol 11): from 1.0 on nothing more may be taken in."""
        rows = self.unconfirmed()
        size = sum(row.size for rows in self._rows.values() for row in rows)
        self.crowd = max(rows / self._config.unconfirmed_limit, size / self._config.unconfirmed_bytes)
        return self.crowd
