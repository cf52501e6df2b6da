"""Attempts that were heard of: their start-to-close and heartbeat deadlines, in the owner's memory (protocol 21, 22).

They are measured by the owner's monotonic clock: what Postgres's clock says may jump by an hour, and then every
attempt that is alive would be given up at once, or one that is dead never.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable

import msgspec

from ductor_stream.engine.definition import StepOptions
from ductor_stream.ports import Clock, OpenAttempt

CHECK_AGAIN_MS = 50
"""While results lie unread, look again after this time: far below any heartbeat, and cheap."""

Key = tuple[str, int, str]
"""(run id, execution, node id) of an attempt."""


class Heard(msgspec.Struct):
    """An attempt that was heard of. ``open`` is its row; ``noticed`` when it was found overdue (ms of Postgres's clock).

    ``began`` and ``beaten`` are when this owner first and last heard of it (ms of the monotonic clock).
    """

    open: OpenAttempt
    options: StepOptions | None
    began: int = 0
    beaten: int = 0
    noticed: int | None = None

    def due(self) -> tuple[int, str]:
        """When it is given up (ms of the monotonic clock), and why."""
        if self.options is None:
            return (1 << 62, "")
        closes = self.began + self.options.start_to_close_ms
        silent = self.beaten + self.options.silence_ms
        if closes <= silent:
            return closes, "timeout_start_to_close"
        return silent, "heartbeat_lost" if self.options.heartbeat_ms is not None else "worker_lost"


class Heartbeats:
    """All attempts that were heard of, of the owned partitions."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._heard: dict[Key, Heard] = {}
        self._heap: list[tuple[int, Key]] = []
        self._queued: set[Key] = set()

    def find(self, key: Key) -> Heard | None:
        """The attempt, if it was heard of."""
        return self._heard.get(key)

    def hear(self, row: OpenAttempt, options: StepOptions | None) -> None:
        """The attempt is alive, as its row says."""
        key = (row.run_id, row.execution, row.node_id)
        now, known = self._now(), self._heard.get(key)
        began = known.began if known is not None and known.open.generation == row.generation else now
        heard = Heard(row, options, began, now)
        self._heard[key] = heard
        if options is not None:
            self._push(heard.due()[0], key)

    def forget(self, key: Key) -> None:
        """The attempt has ended."""
        self._heard.pop(key, None)

    def close(self, partitions: Iterable[int]) -> None:
        """Forget partitions."""
        gone = frozenset(partitions)
        self._heard = {key: heard for key, heard in self._heard.items() if heard.open.partition not in gone}

    def of_partition(self, partitions: Iterable[int]) -> list[Heard]:
        """The attempts of these partitions."""
        wanted = frozenset(partitions)
        return [heard for heard in self._heard.values() if heard.open.partition in wanted]

    def due(self) -> list[tuple[Heard, str]]:
        """Attempts whose deadline has passed, with the reason. Each is given back by ``again`` or ``forget``."""
        found: list[tuple[Heard, str]] = []
        now = self._now()
        while self._heap and self._heap[0][0] <= now:
            _, key = heapq.heappop(self._heap)
            self._queued.discard(key)
            heard = self._heard.get(key)
            if heard is None or heard.options is None:
                continue
            at, code = heard.due()
            if at > now:
                self._push(at, key)
            else:
                found.append((heard, code))
        return found

    def again(self, heard: Heard) -> None:
        """Not yet: results that lie unread might answer for it."""
        key = (heard.open.run_id, heard.open.execution, heard.open.node_id)
        self._push(self._now() + CHECK_AGAIN_MS, key)

    def _push(self, at: int, key: Key) -> None:
        """One place in the heap per attempt: a later deadline is seen when the earlier one comes up."""
        if key not in self._queued:
            self._queued.add(key)
            heapq.heappush(self._heap, (at, key))

    def next_in(self) -> int | None:
        """In how many ms a deadline passes."""
        return self._heap[0][0] - self._now() if self._heap else None

    def _now(self) -> int:
        return int(self._clock.monotonic() * 1000)
