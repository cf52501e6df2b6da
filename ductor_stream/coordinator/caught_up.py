"""Whether what had come by a moment has been applied: what is given up by the clock waits for that (protocol 21)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from ductor_stream.coordinator.ownership import Owned
from ductor_stream.errors import LogUnavailable
from ductor_stream.ports import INBOUND, Clock, EventLog, Inbound

RESULTS = INBOUND.index("attempt-results")

Place = tuple[int, Inbound]


class _Mark(NamedTuple):
    """Where a log ended at a moment (ms of Postgres's clock)."""

    at: int
    end: int


class CaughtUp:
    """Puts a mark at the end of a log, and another when that has been read: under a flow that never ends, too, each is reached."""

    def __init__(self, log: EventLog, clock: Clock) -> None:
        self._log, self._clock = log, clock
        self._marks: dict[Place, _Mark] = {}
        self._reached: dict[Place, int] = {}
        self._ends: dict[int, tuple[int, Mapping[Inbound, int]] | None] = {}

    def begin(self) -> None:
        """A new turn: where logs end is asked once for each partition, since it may take seconds when Kafka is away."""
        self._ends.clear()

    def forget(self, partitions: Iterable[int]) -> None:
        """These partitions are no longer ours."""
        gone = frozenset(partitions)
        self._marks = {place: mark for place, mark in self._marks.items() if place[0] not in gone}
        self._reached = {place: at for place, at in self._reached.items() if place[0] not in gone}

    def since(self, at: int, owned: Owned, topic: Inbound) -> bool:
        """Whether all that the topic held at ``at`` (ms of Postgres's clock, not in the future) has been applied."""
        place, now = (owned.partition, topic), self._clock.now()
        if self._reached.get(place, 0) > now:
            del self._reached[place]  # the clock was stepped back: that moment is yet to come
        if place in self._marks and self._marks[place].at > now:
            del self._marks[place]
        position = max(owned.offsets[INBOUND.index(topic)], self._log.reached_end(*place))
        while self._reached.get(place, 0) < min(at, now):
            mark = self._marks.get(place)
            if mark is None:
                found = self._ends_of(owned.partition)
                if found is None or found[0] < min(at, now):
                    return False
                mark = self._marks[place] = _Mark(found[0], found[1][topic])
            if position < mark.end:
                return False
            self._reached[place] = mark.at
            del self._marks[place]
        return True

    def _ends_of(self, partition: int) -> tuple[int, Mapping[Inbound, int]] | None:
        """Where its logs ended at a moment of this turn: that before the question, which may take seconds."""
        if partition not in self._ends:
            self._ends[partition] = None
            if self._log.healthy() and None not in (end for p, end in self._ends.items() if p != partition):
                try:
                    asked_at = self._clock.now()
                    self._ends[partition] = asked_at, self._log.end_offsets(partition)
                except LogUnavailable:
                    pass
        return self._ends[partition]
