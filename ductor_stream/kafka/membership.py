"""Which partitions are whole: ours in all three inbound topics. Pure bookkeeping, no client in here.

The group gives and takes single topic-partitions, all at once (eager) or a few at a time (incremental). A run
partition counts as ours only while we hold it in every inbound topic (protocol 7).
"""

from __future__ import annotations

from collections.abc import Iterable

from ductor_stream.ports import INBOUND, Inbound

Place = tuple[Inbound, int]
"""One partition of one inbound topic."""


class Membership:
    """What the group has given us, and which whole partitions the owner was told of."""

    def __init__(self) -> None:
        self._held: set[Place] = set()
        self._whole: set[int] = set()

    @property
    def whole(self) -> frozenset[int]:
        """The partitions that are ours."""
        return frozenset(self._whole)

    @property
    def held(self) -> frozenset[Place]:
        """All that the group has given us, halves included."""
        return frozenset(self._held)

    def give(self, places: Iterable[Place]) -> frozenset[int]:
        """These are ours now; returns the partitions that have become whole by it."""
        self._held.update(places)
        fresh = {
            partition
            for partition in {partition for _, partition in self._held} - self._whole
            if all((topic, partition) in self._held for topic in INBOUND)
        }
        self._whole |= fresh
        return frozenset(fresh)

    def take(self, places: Iterable[Place]) -> frozenset[int]:
        """These are ours no more; returns the partitions that were whole and are not any longer."""
        gone = set(places)
        self._held -= gone
        broken = self._whole & {partition for _, partition in gone}
        self._whole -= broken
        return frozenset(broken)
