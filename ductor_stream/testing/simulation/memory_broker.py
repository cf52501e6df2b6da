"""Kafka in memory: topics, one group of coordinators, and records on their way. Many ``MemoryLog`` share one broker."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import TYPE_CHECKING

import msgspec

from ductor_stream.engine.ids import partition_of
from ductor_stream.ports import INBOUND, UNREAD, Outgoing
from ductor_stream.protocol.topics import Topics, is_topic

if TYPE_CHECKING:
    from ductor_stream.testing.simulation.memory_log import MemoryLog

partition_for = functools.lru_cache(4_096)(partition_of)

LARGEST_RECORD = 1_000_000
"""Bytes that a broker takes by default, more or less."""


class Kept(msgspec.Struct, frozen=True):
    """A record as the broker keeps it."""

    offset: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]]


class Stored:
    """One partition of a topic: its records from ``start`` on."""

    def __init__(self) -> None:
        self.start = 0
        self.open: set[int] = set()
        """Records that a reader has taken and not yet done, where somebody keeps account of it."""
        self.records: list[Kept] = []

    @property
    def end(self) -> int:
        """The offset of the next record."""
        return self.start + len(self.records)

    @property
    def committed(self) -> int:
        """What the readers' group has committed: everything before it is done."""
        return min(self.open, default=self.end) if self.records or self.start else UNREAD

    def trim(self, start: int) -> None:
        """Retention: what is before this offset is gone."""
        gone = min(max(0, start - self.start), len(self.records))
        del self.records[:gone]
        self.start += gone


class Topic:
    """A topic; ``id`` is another one when it is created anew."""

    def __init__(self, name: str, id: str, partitions: int) -> None:
        self.name, self.id = name, id
        self.partitions = [Stored() for _ in range(partitions)]


class Broker:
    """The cluster. ``landed`` hears of every record that gets into a topic, ``handed`` of what coordinators produce."""

    def __init__(self, topics: Topics, partitions: int, queues: Sequence[str], *, eager: bool = True) -> None:
        self.names = topics
        self.eager = eager
        """Whether a rebalance takes all partitions from everybody (classic ``range``) or only those that move."""
        self.topics: dict[str, Topic] = {}
        self.groups: dict[str, Callable[[int], int]] = {}
        """Task topic -> what its group has committed of a partition, for groups that commit."""
        self.landed: Callable[[Topic, int, Kept], None] = lambda topic, partition, record: None
        self.handed: Callable[[Sequence[Outgoing]], None] = lambda records: None
        self.members: list[MemoryLog] = []
        self.holders: dict[int, MemoryLog] = {}
        self.generation = 0
        self.changes = 0
        """Goes up with all that may give a member something to read."""
        self.ids: Mapping[str, str] = {}
        self.counts: Mapping[str, int] = {}
        """Ids and partition counts of all topics by name; another object whenever that changes."""
        self._targets: dict[MemoryLog, frozenset[int]] = {}
        self._ids = 0
        for name in topics.inbound_names:
            self.create(name, partitions)
        for name in (topics.attempt_control, topics.run_lifecycle, topics.dead_letters):
            self.create(name, 1)
        for queue in queues:
            self.create(topics.tasks(queue), 2)

    # -- topics -----------------------------------------------------------------------------

    def create(self, name: str, partitions: int) -> None:
        """Create a topic, or create it anew: empty, and with another id."""
        self._ids += 1
        self.changes += 1
        self.topics[name] = Topic(name, f"id-{self._ids}", partitions)
        self.ids = {name: topic.id for name, topic in self.topics.items()}
        self.counts = {name: len(topic.partitions) for name, topic in self.topics.items()}
        self._targets.clear()

    def append(
        self,
        name: str,
        key: bytes | None,
        value: bytes | None,
        headers: Sequence[tuple[str, bytes | None]] = (),
        partition: int | None = None,
    ) -> Kept:
        """Put a record into a topic; the key decides where no partition is given. Raises KeyError without the topic."""
        topic = self.topics[name]
        if partition is None or partition >= len(topic.partitions):
            partition = partition_for(key or b"", len(topic.partitions))
        stored = topic.partitions[partition]
        record = Kept(stored.start + len(stored.records), key, value, headers)
        stored.records.append(record)
        self.changes += 1
        self.landed(topic, partition, record)
        return record

    def committed(self, topic: str, partition: int) -> int:
        """What the readers' group of a task topic has committed: by its own commits, where it makes any."""
        group = self.groups.get(topic)
        return group(partition) if group is not None else self.topics[topic].partitions[partition].committed

    def cut(self, queue: str, rng: Random) -> str:
        """Retention is short: what stands in a partition of that queue is gone, read or not. Returns what was done."""
        name = self.names.tasks(queue)
        stored = rng.choice(self.topics[name].partitions)
        stored.trim(stored.end)
        self.changes += 1
        return f"{name} is cut at {stored.end}"

    def refusal(self, record: Outgoing) -> tuple[str, bool] | None:
        """Why the broker does not take a record, and whether that is for ever."""
        if len(record.value) > LARGEST_RECORD:
            return "message too large", True
        if not is_topic(record.topic):
            return "illegal topic name", True
        if record.topic not in self.topics:
            return "unknown topic", False
        return None

    # -- the group --------------------------------------------------------------------------

    def join(self, member: MemoryLog) -> None:
        """Another member: partitions are shared out anew."""
        self.members.append(member)
        self._regroup()

    def leave(self, member: MemoryLog) -> None:
        """A member has gone, or was silent for longer than its session lasts: its partitions are free."""
        if member in self.members:
            self.members.remove(member)
            self._regroup()
        self.changes += 1
        for partition in [p for p, holder in self.holders.items() if holder is member]:
            del self.holders[partition]

    def _regroup(self) -> None:
        self.generation += 1
        self.changes += 1
        self._targets.clear()

    def target(self, member: MemoryLog) -> frozenset[int]:
        """What the ``range`` assignor gives a member."""
        found = self._targets.get(member)
        if found is None:
            found = self._targets[member] = self._range(member)
        return found

    def _range(self, member: MemoryLog) -> frozenset[int]:
        count = min(len(self.topics[name].partitions) for name in map(self.names.inbound, INBOUND))
        place, members = self.members.index(member), len(self.members)
        share, rest = divmod(count, members)
        first = place * share + min(place, rest)
        return frozenset(range(first, first + share + (1 if place < rest else 0)))
