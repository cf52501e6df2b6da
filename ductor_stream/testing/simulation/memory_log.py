"""``ports.EventLog`` over a broker in memory. Guarantees are those of Kafka: at least once in both directions."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import msgspec

from ductor_stream.errors import LogUnavailable, OwnershipLost
from ductor_stream.ports import (
    INBOUND,
    UNREAD,
    Acknowledged,
    Clock,
    Inbound,
    Outgoing,
    Ownership,
    Received,
    TaskPlace,
    TaskStand,
    Undeliverable,
)
from ductor_stream.testing.simulation.gate import Gate
from ductor_stream.testing.simulation.memory_broker import Broker, Stored

Place = tuple[Inbound, int]

MESSAGE_TIMEOUT_S = 0.3
"""How long a record waits for a topic that is not there; Kafka's clients are told five minutes, tests wait less."""


class Gap(msgspec.Struct, frozen=True):
    """Records that were lost unread (see ``ports.LostRange``)."""

    topic: Inbound
    partition: int
    from_offset: int
    to_offset: int


class Call:
    """One call of ``produce``: how many of its records are open, and which failed."""

    def __init__(self, records: Sequence[Outgoing], acknowledged: Acknowledged) -> None:
        self.acknowledged = acknowledged
        self.open = len(records)
        self.failed: list[Undeliverable] = []


class Flying(msgspec.Struct):
    """A record on its way to the broker."""

    record: Outgoing
    call: Call
    since: float


class MemoryLog:
    """One member of the group with its producer. ``gate`` decides about faults and about what comes when."""

    def __init__(self, broker: Broker, clock: Clock, gate: Gate | None = None) -> None:
        self.broker, self._clock, self._gate = broker, clock, gate or Gate()
        self._names = {topic: broker.names.inbound(topic) for topic in INBOUND}
        self._ownership: Ownership | None = None
        self._generation = -1
        self._held: set[int] = set()
        self._next: dict[Place, int] = {}
        self._ends: dict[Place, int] = {}
        self._ids: dict[Inbound, str] = {}
        self._known: Mapping[str, str] = {}
        self._paused: set[int] = set()
        self._gaps: list[Gap] = []
        self.flying: deque[Flying] = deque()
        self._answered: deque[Call] = deque()
        self._quiet = -1
        """The broker's count of changes when there was nothing to read, until we read otherwise."""
        self.closed = False

    # -- the group --------------------------------------------------------------------------

    def subscribe(self, ownership: Ownership) -> None:
        """Join the group."""
        self._ownership = ownership
        self.broker.join(self)

    def poll(self, timeout: float, limit: int) -> list[Received]:
        """What is there, at most ``limit``. Serves rebalances and delivery reports; does not wait by itself."""
        self._gate.enter("poll")
        self._serve()
        if self._ownership is None:
            return []
        self._rebalance(self._ownership)
        records: list[Received] = []
        if self._quiet != self.broker.changes or self._known is not self.broker.ids:
            self._quiet = -1
            self._mend()
            records = self._read(limit)
        self._serve()
        if not records:
            self._gate.idle(timeout)
        return records

    def _rebalance(self, ownership: Ownership) -> None:
        broker = self.broker
        if self not in broker.members:
            lost = frozenset(self._held)
            self._drop(lost)
            broker.join(self)
            if lost:
                ownership.lost(lost)
        target = broker.target(self)
        if self._generation != broker.generation:
            generation = broker.generation
            going = frozenset(self._held if broker.eager else self._held - target)
            if going:
                try:
                    ownership.revoked(going)
                finally:
                    self._drop(going)
            self._generation = generation
            target = broker.target(self) if self in broker.members else frozenset()
        coming = frozenset(p for p in target - self._held if p not in broker.holders)
        if coming:
            broker.changes += 1
            for partition in coming:
                broker.holders[partition] = self
            self._held |= coming
            ownership.assigned(coming)

    def _drop(self, partitions: frozenset[int]) -> None:
        self.broker.changes += 1
        for partition in partitions:
            if self.broker.holders.get(partition) is self:
                del self.broker.holders[partition]
            for topic in INBOUND:
                self._forget((topic, partition))
        self._held -= partitions
        self._paused -= partitions

    def _forget(self, place: Place) -> None:
        self._next.pop(place, None)
        self._ends.pop(place, None)

    def news(self) -> bool:
        """Whether a poll would find something."""
        broker = self.broker
        if self._answered:
            return True
        if self._quiet == broker.changes:
            return False
        if self not in broker.members or self._generation != broker.generation:
            return True
        if not broker.holders.keys() >= broker.target(self):
            return True
        for _ in self._readable():
            return True
        self._quiet = broker.changes
        return False

    def still_member(self) -> bool:
        """Whether the broker has us as a member now."""
        return self in self.broker.members

    # -- reading ----------------------------------------------------------------------------

    def _stored(self, place: Place) -> Stored:
        return self.broker.topics[self._names[place[0]]].partitions[place[1]]

    def _readable(self) -> Iterator[tuple[Place, Stored]]:
        topics, names, ends, paused = self.broker.topics, self._names, self._ends, self._paused
        for place, position in self._next.items():
            if place[1] in paused:
                continue
            stored = topics[names[place[0]]].partitions[place[1]]
            if position < stored.start + len(stored.records) or ends.get(place) != position:
                yield place, stored

    def _mend(self) -> None:
        """Positions that the log does not have: go on at its start, and say what was lost."""
        renewed: set[Inbound] = set()
        if self._known is not self.broker.ids:
            self._known = self.broker.ids
            for topic in INBOUND:
                id = self._known[self._names[topic]]
                if self._ids.get(topic, id) != id:
                    renewed.add(topic)
                self._ids[topic] = id
        topics, names = self.broker.topics, self._names
        for place, position in self._next.items():
            stored = topics[names[place[0]]].partitions[place[1]]
            if position == UNREAD:
                self._next[place] = stored.start
            elif place[0] in renewed or not stored.start <= position <= stored.start + len(stored.records):
                self._gaps.append(Gap(*place, from_offset=position, to_offset=stored.start))
                self._next[place] = stored.start
                self._ends.pop(place, None)

    def _read(self, limit: int) -> list[Received]:
        found: list[Received] = []
        for place, stored in list(self._readable()):
            room = limit - len(found)
            position, end = self._next[place], stored.end
            first = position - stored.start
            count = self._gate.share(min(room, end - position))
            for record in stored.records[first : first + count]:
                found.append(Received(*place, record.offset, record.key, record.value, record.headers))
            self._next[place] = position + count
            if position + count == end and room > count:
                self._ends[place] = end
        return found

    def seek(self, partition: int, offsets: Mapping[Inbound, int]) -> None:
        """Read a partition from these offsets on. Raises OwnershipLost if it is not ours."""
        self._gate.enter("seek")
        if partition not in self._held:
            raise OwnershipLost(frozenset({partition}))
        self._quiet = -1
        self._mend()
        for topic, offset in offsets.items():
            self._forget((topic, partition))
            self._next[topic, partition] = offset
        self._mend()

    def pause(self, partitions: Iterable[int]) -> None:
        """Stop reading these partitions for now; those that are not ours are passed over."""
        self._paused |= self._held & set(partitions)

    def resume(self, partitions: Iterable[int]) -> None:
        """Go on reading them."""
        self._quiet = -1
        self._paused -= set(partitions)

    def reached_end(self, partition: int, topic: Inbound) -> int:
        """The position at which the end was last hit since the last seek, ``UNREAD`` before that."""
        return self._ends.get((topic, partition), UNREAD)

    def gaps(self) -> list[Gap]:
        """Ranges found lost since the last call."""
        gaps, self._gaps = self._gaps, []
        return gaps

    def store_offsets(self, partition: int, offsets: Mapping[Inbound, int]) -> None:
        """For lag tools, of which there are none."""

    # -- producing --------------------------------------------------------------------------

    def produce(self, records: Sequence[Outgoing], acknowledged: Acknowledged) -> None:
        """Hand records over; ``acknowledged`` hears once, from a later ``poll``, ``flush`` or ``close``."""
        self.broker.handed(records)
        self._gate.enter("produce")
        call = Call(records, acknowledged)
        if not records:
            self._answered.append(call)
        now = self._clock.monotonic()
        self.flying.extend(Flying(record, call, now) for record in records)
        self._gate.leave("produce")

    def heads(self) -> list[Flying]:
        """The records that may be answered for next: the order within a topic's partition is kept."""
        seen: set[tuple[str, int | None, bytes]] = set()
        found: list[Flying] = []
        for flying in self.flying:
            record = flying.record
            queue = (record.topic, record.partition, b"" if record.partition is not None else record.key)
            if queue not in seen:
                seen.add(queue)
                found.append(flying)
        return found

    def answer(self, flying: Flying, error: str = "", *, lands: bool = True) -> bool:
        """The broker's word on one record. With ``error`` it is told as not taken, whether it landed or not.

        False when the broker has no word on it yet.
        """
        record = flying.record
        refusal = self.broker.refusal(record)
        if refusal is not None:
            error, permanent = refusal
            if not permanent and self._clock.monotonic() - flying.since < MESSAGE_TIMEOUT_S:
                return False
            flying.call.failed.append(Undeliverable(record, error, permanent))
        else:
            if lands:
                self.broker.append(record.topic, record.key, record.value, record.headers, record.partition)
            if error:
                flying.call.failed.append(Undeliverable(record, error, False))
        self.flying.remove(flying)
        flying.call.open -= 1
        if not flying.call.open:
            self._answered.append(flying.call)
        return True

    def answer_all(self) -> None:
        """The broker takes everything that it can."""
        for flying in list(self.flying):
            self.answer(flying)

    def _serve(self) -> None:
        if self._gate.delivers():
            self.answer_all()
        while self._answered:
            call = self._answered.popleft()
            call.acknowledged(call.failed)

    def flush(self, timeout: float) -> int:
        """Wait at most ``timeout`` seconds for outstanding acknowledgements; returns how many records are open."""
        self._gate.enter("flush")
        deadline = self._clock.monotonic() + timeout
        while True:
            self._serve()
            left = deadline - self._clock.monotonic()
            if not self.flying or left <= 0:
                return len(self.flying)
            self._clock.sleep(min(left, 0.02))

    # -- questions --------------------------------------------------------------------------

    def end_offsets(self, partition: int) -> dict[Inbound, int]:
        """The end of each inbound topic's partition."""
        self._gate.enter("end_offsets")
        return {topic: self._stored((topic, partition)).end for topic in INBOUND}

    def written_ends(self, partitions: Iterable[int]) -> dict[Place, int]:
        """The same, since nobody produces in transactions here."""
        self._gate.enter("end_offsets")
        return {(topic, p): self._stored((topic, p)).end for p in partitions for topic in INBOUND}

    def start_offsets(self, partition: int) -> dict[Inbound, int]:
        """The earliest offset of each inbound topic's partition."""
        self._gate.enter("start_offsets")
        return {topic: self._stored((topic, partition)).start for topic in INBOUND}

    def topic_ids(self) -> dict[str, str]:
        """Ids by full name."""
        self._gate.enter("topic_ids")
        return dict(self.broker.ids)

    def partition_counts(self) -> dict[str, int]:
        """Partition counts by full name."""
        self._gate.enter("partition_counts")
        return dict(self.broker.counts)

    def hidden_topics(self) -> frozenset[str]:
        """Nobody is refused anything here."""
        return frozenset()

    def ask_tasks(self) -> Callable[[], Mapping[TaskPlace, TaskStand] | None]:
        """Where the task topics stand; the answer is there at once."""
        stands: dict[TaskPlace, TaskStand] = {}
        with contextlib.suppress(LogUnavailable):
            self._gate.enter("ask_tasks")
            for name, topic in self.broker.topics.items():
                if self.broker.names.queue_of(name) is not None:
                    for number, stored in enumerate(topic.partitions):
                        committed = self.broker.committed(name, number)
                        stands[name, number] = TaskStand(stored.start, stored.end, committed)
        return lambda: stands

    def look_again(self) -> None:
        """What is asked for here is never old."""

    def healthy(self) -> bool:
        """Whether a broker answers."""
        try:
            self._gate.enter("healthy")
        except LogUnavailable:
            return False
        return True

    def close(self) -> None:
        """Leave the group (``revoked`` hears of what was held) and close the producer."""
        if self.closed:
            return
        self.closed = True
        held = frozenset(self._held)
        if held and self._ownership is not None:
            self._ownership.revoked(held)
        self._drop(held)
        self.broker.leave(self)
        self.flush(5.0)
