"""``ports.TaskLog`` and ``ports.TaskSource`` over a broker in memory. Guarantees are those of Kafka: at least once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import msgspec

from ductor_stream.ports import UNREAD, Delivered, Outgoing, TaskOwnership, TaskPosition, TaskRecord, Undeliverable
from ductor_stream.testing.simulation.memory_broker import Broker, Topic

Committed = Callable[["MemoryTaskSource", Mapping[int, TaskPosition]], None]
"""Hears of every commit before it takes effect."""


class TaskGates:
    """Decides about faults. A simulation overrides it."""

    def call(self, name: str) -> None:
        """A call begins, or has taken effect (``after ...``). May raise Crash."""

    def commits(self) -> bool:
        """Whether this commit of offsets works."""
        return True

    def waited(self) -> None:
        """A commit that was waited for has failed, which took a while."""


class TaskGroup:
    """The group of one queue's workers, with its committed positions, which go with the topic."""

    def __init__(self, broker: Broker, queue: str, committing: Committed) -> None:
        self._broker, self.name = broker, broker.names.tasks(queue)
        self.members: list[MemoryTaskSource] = []
        self.holders: dict[int, MemoryTaskSource] = {}
        self.generation = 0
        self._committing = committing
        self._topic_id = self.topic.id
        self._positions: dict[int, TaskPosition] = {}
        broker.groups[self.name] = self._committed

    def _committed(self, partition: int) -> int:
        known = self.positions().get(partition)
        return UNREAD if known is None or known.offset is None else known.offset

    @property
    def topic(self) -> Topic:
        """The topic as it is now."""
        return self._broker.topics[self.name]

    def positions(self) -> dict[int, TaskPosition]:
        """What is committed; nothing for a topic that was created anew."""
        if self._topic_id != self.topic.id:
            self._topic_id = self.topic.id
            self._positions.clear()
        return self._positions

    def commit(self, source: MemoryTaskSource, positions: Mapping[int, TaskPosition]) -> None:
        """Positions of a member."""
        self._committing(source, positions)
        self.positions().update(positions)

    def join(self, member: MemoryTaskSource) -> None:
        """Another member."""
        self.members.append(member)
        self.generation += 1

    def leave(self, member: MemoryTaskSource) -> None:
        """A member has gone, or was expelled: its partitions are free."""
        if member in self.members:
            self.members.remove(member)
            self.generation += 1
        self.holders = {p: holder for p, holder in self.holders.items() if holder is not member}

    def target(self, member: MemoryTaskSource) -> frozenset[int]:
        """What a member is to read."""
        place, count = self.members.index(member), len(self.members)
        return frozenset(p for p in range(len(self.topic.partitions)) if p % count == place)

    def behind(self) -> bool:
        """Whether something of the topic is not committed as done."""
        known = self.positions()
        return any(
            stored.end > stored.start and (p not in known or (known[p].offset or 0) < stored.end)
            for p, stored in enumerate(self.topic.partitions)
        )


class MemoryTaskSource:
    """One member of a queue's group."""

    def __init__(self, group: TaskGroup, gates: TaskGates) -> None:
        self.group, self._gates = group, gates
        self._ownership: TaskOwnership | None = None
        self._generation = -1
        self._next: dict[int, int] = {}
        self._topic_id = group.topic.id
        self._read_of: dict[int, str] = {}
        self._paused: set[int] = set()
        self._failed: set[int] = set()

    def subscribe(self, ownership: TaskOwnership) -> None:
        """Join the group; once is enough."""
        if self._ownership is None:
            self._ownership = ownership
            self.group.join(self)

    def poll(self, timeout: float, limit: int) -> list[TaskRecord]:
        """What is there, at most ``limit``; serves rebalances. Does not wait by itself."""
        self._gates.call("task poll")
        ownership = self._ownership
        if ownership is None:
            return []
        failed, self._failed = self._failed, set()
        if failed:
            ownership.uncommitted(frozenset(failed))
        self._rebalance(ownership)
        return self._read(limit)

    def news(self) -> bool:
        """Whether a poll would find something."""
        group = self.group
        if self not in group.members or self._generation != group.generation or self._topic_id != group.topic.id:
            return True
        if not group.holders.keys() >= group.target(self):
            return True
        stored = group.topic.partitions
        return any(p not in self._paused and at < stored[p].end for p, at in self._next.items())

    def _rebalance(self, ownership: TaskOwnership) -> None:
        group = self.group
        if self not in group.members:
            lost = frozenset(self._next)
            self._drop(lost)
            group.join(self)
            if lost:
                ownership.lost(lost)
        if self._generation != group.generation:
            generation, going = group.generation, frozenset(self._next)
            if going:
                try:
                    ownership.revoked(going)
                finally:
                    self._drop(going)
            self._generation = generation
        target = group.target(self) if self in group.members else frozenset()
        coming = [p for p in sorted(target - self._next.keys()) if p not in group.holders]
        if coming:
            self._assign(ownership, coming)

    def _assign(self, ownership: TaskOwnership, partitions: list[int]) -> None:
        known = self.group.positions()
        given = {p: known.get(p, TaskPosition(None)) for p in partitions}
        for partition, position in given.items():
            self.group.holders[partition] = self
            start = self.group.topic.partitions[partition].start
            self._next[partition] = start if position.offset is None else position.offset
            self._read_of[partition] = self.group.topic.id
        ownership.assigned(given)

    def _drop(self, partitions: Iterable[int]) -> None:
        for partition in partitions:
            if self.group.holders.get(partition) is self:
                del self.group.holders[partition]
            self._next.pop(partition, None)
            self._paused.discard(partition)
            self._failed.discard(partition)

    def _read(self, limit: int) -> list[TaskRecord]:
        topic = self.group.topic
        if self._topic_id != topic.id:
            self._topic_id = topic.id
            self._next = dict.fromkeys(self._next, 0)
        found: list[TaskRecord] = []
        for partition, position in self._next.items():
            stored = topic.partitions[partition]
            if partition in self._paused or position >= stored.end:
                continue
            first = max(0, position - stored.start)
            records = stored.records[first : first + limit - len(found)]
            if records:
                self._read_of[partition] = topic.id
            found += [TaskRecord(partition, r.offset, r.key, r.value, r.headers) for r in records]
            self._next[partition] = stored.start + first + len(records)
        return found

    def pause(self, partitions: Iterable[int]) -> None:
        """Stop reading these partitions for now."""
        self._paused |= self._next.keys() & set(partitions)

    def resume(self, partitions: Iterable[int]) -> None:
        """Go on reading them."""
        self._paused -= set(partitions)

    def commit(self, positions: Mapping[int, TaskPosition], *, wait: bool) -> bool:
        """Commit what is still ours; a failure that is not waited for is told by the next poll."""
        self._gates.call("task commit")
        ours = {p: at for p, at in positions.items() if self.group.holders.get(p) is self}
        # A position in a topic that is gone says nothing about the one that has taken its name. Brokers tell them apart
        # for consumers that send topic ids; what those do that do not is no part of this simulation.
        current = {p: at for p, at in ours.items() if self._read_of.get(p, self._topic_id) == self.group.topic.id}
        works = self._gates.commits() and len(ours) == len(positions)
        if works:
            self.group.commit(self, current)
            self._gates.call("after task commit")
        elif wait:
            self._gates.waited()
        else:
            self._failed |= ours.keys()
        return works or not wait

    def problem(self) -> str:
        """Nothing ever keeps it from reading."""
        return ""

    def close(self) -> None:
        """Leave the group (``revoked`` hears of what was held)."""
        held = frozenset(self._next)
        if held and self._ownership is not None and self in self.group.members:
            self._ownership.revoked(held)
        self._drop(held)
        self.group.leave(self)


class Sent(msgspec.Struct):
    """A record on its way to the broker."""

    record: Outgoing
    delivered: Delivered


class MemoryTaskLog:
    """The producer of one worker, and its sources. Nothing is answered before ``answer`` is called."""

    def __init__(self, broker: Broker, groups: Mapping[str, TaskGroup], gates: TaskGates) -> None:
        self._broker, self._groups, self._gates = broker, groups, gates
        self.flying: list[Sent] = []
        control = broker.topics[broker.names.attempt_control]
        self._stops_read = control.partitions[0].end

    def source(self, queue: str) -> MemoryTaskSource:
        """The tasks of a queue."""
        return MemoryTaskSource(self._groups[queue], self._gates)

    def produce(self, record: Outgoing, delivered: Delivered) -> None:
        """Hand a record over."""
        self._gates.call("task produce")
        self.flying.append(Sent(record, delivered))

    def heads(self) -> list[Sent]:
        """The records that may be answered for next: the order of each key is kept."""
        seen: set[tuple[str, bytes]] = set()
        found: list[Sent] = []
        for sent in self.flying:
            key = (sent.record.topic, sent.record.key)
            if key not in seen:
                seen.add(key)
                found.append(sent)
        return found

    def answer(self, sent: Sent, error: str = "", *, lands: bool = True) -> None:
        """The broker's word on one record. With ``error`` it is told as not taken, whether it landed or not."""
        self.flying.remove(sent)
        record = sent.record
        if lands:
            self._broker.append(record.topic, record.key, record.value, record.headers, record.partition)
        sent.delivered(Undeliverable(record, error, False) if error else None)

    def stops(self, timeout: float) -> list[TaskRecord]:
        """Records of ``attempt-control`` that came since the last call."""
        stored = self._broker.topics[self._broker.names.attempt_control].partitions[0]
        records = stored.records[self._stops_read - stored.start :]
        self._stops_read = stored.end
        return [TaskRecord(0, r.offset, r.key, r.value, r.headers) for r in records]

    def problem(self) -> str:
        """The broker can always be reached."""
        return ""

    def flush(self, timeout: float) -> int:
        """How many acknowledgements are outstanding."""
        return len(self.flying)

    def close(self) -> None:
        """What is on its way is answered by whoever drives the simulation."""
