"""What tests of the log share: an owner that notes what it hears, and rigs that open logs over fresh topics."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Literal, Protocol

from confluent_kafka import Producer
from support import fresh_name, until

from ductor_stream.clock import StoreClock
from ductor_stream.kafka.log import KafkaLog, KafkaLogConfig
from ductor_stream.kafka.topics import AdminConfig, create_topics, plan
from ductor_stream.ports import INBOUND, UNREAD, EventLog, Inbound, Received, Undeliverable
from ductor_stream.protocol.topics import Topics
from ductor_stream.testing.simulation.memory_broker import Broker
from ductor_stream.testing.simulation.memory_log import MemoryLog

FROM_THE_START: Mapping[Inbound, int] = dict.fromkeys(INBOUND, UNREAD)


FAST: Mapping[str, str | int] = {"fetch.wait.max.ms": 20}
"""A seek waits for the fetch under way: half a second by default, which a test that seeks often need not spend."""


class Owner:
    """An ``Ownership`` that notes what it hears and what it holds."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, frozenset[int]]] = []
        self.holds: set[int] = set()

    def assigned(self, partitions: frozenset[int]) -> None:
        self.heard.append(("assigned", partitions))
        self.holds |= partitions

    def revoked(self, partitions: frozenset[int]) -> None:
        self.heard.append(("revoked", partitions))
        self.holds -= partitions

    def lost(self, partitions: frozenset[int]) -> None:
        self.heard.append(("lost", partitions))
        self.holds -= partitions


class Acks:
    """Collects the calls of ``acknowledged``."""

    def __init__(self) -> None:
        self.calls: list[Sequence[Undeliverable]] = []

    def __call__(self, failed: Sequence[Undeliverable]) -> None:
        self.calls.append(failed)


class LogRig(Protocol):
    """A place in which logs of one namespace can be opened; closed by the fixture."""

    topics: Topics
    partitions: int

    def open(self) -> EventLog:
        """A log of the namespace, another member of the group each time."""

    def write(
        self,
        topic: Inbound,
        partition: int,
        values: Sequence[bytes | None],
        key: bytes | None = b"k",
        headers: Sequence[tuple[str, bytes | None]] = (),
    ) -> None:
        """Somebody else's records; in the log when this returns."""


class KafkaRig:
    """Real Kafka, with topics of its own."""

    def __init__(
        self, bootstrap: str, protocol: Literal["auto", "consumer", "classic"], *, partitions: int = 4
    ) -> None:
        self.bootstrap = bootstrap
        self.protocol = protocol
        self.partitions = partitions
        self.topics = Topics(fresh_name("log"))
        self.admin = AdminConfig(bootstrap=bootstrap, topics=self.topics)
        self.create()
        self._open: list[KafkaLog] = []
        self.renew_writer()

    def create(self) -> None:
        """Create the topics of the namespace, with one queue ``work``."""
        create_topics(self.admin, plan(self.topics, ["work"], partitions=self.partitions))

    def renew_writer(self) -> None:
        """Another client for ``write``: one that knows a deleted topic would wait for it."""
        self._producer = Producer(
            # In order, also where a topic that is just made has its first batch sent again.
            {"bootstrap.servers": self.bootstrap, "linger.ms": 0, "log_level": 0, "enable.idempotence": True}
        )

    def open(self, instance_id: str | None = None, options: Mapping[str, str | int] = FAST) -> KafkaLog:
        log = KafkaLog(
            KafkaLogConfig(
                bootstrap=self.bootstrap,
                topics=self.topics,
                protocol=self.protocol,
                instance_id=instance_id,
                options=options,
            )
        )
        self._open.append(log)
        return log

    def write(
        self,
        topic: Inbound,
        partition: int,
        values: Sequence[bytes | None],
        key: bytes | None = b"k",
        headers: Sequence[tuple[str, bytes | None]] = (),
    ) -> None:
        errors: list[object] = []
        for value in values:
            self._producer.produce(
                self.topics.inbound(topic),
                value,
                key,
                partition,
                on_delivery=lambda error, _: errors.append(error) if error else None,
                headers=list(headers),
            )
        assert self._producer.flush(20) == 0
        assert not errors

    def close(self) -> None:
        for log in self._open:
            log.close()
        self._open.clear()


class MemoryRig:
    """Logs over a broker in memory."""

    def __init__(self, *, partitions: int = 4) -> None:
        self.topics = Topics(fresh_name("log"))
        self.partitions = partitions
        self._broker = Broker(self.topics, partitions, ["work"])
        self._open: list[MemoryLog] = []

    def open(self) -> EventLog:
        self._open.append(MemoryLog(self._broker, StoreClock()))
        return self._open[-1]

    def write(
        self,
        topic: Inbound,
        partition: int,
        values: Sequence[bytes | None],
        key: bytes | None = b"k",
        headers: Sequence[tuple[str, bytes | None]] = (),
    ) -> None:
        for value in values:
            self._broker.append(self.topics.inbound(topic), key, value, headers, partition)

    def close(self) -> None:
        """Close every log that was opened."""
        for log in self._open:
            log.close()


@contextmanager
def memory_rig(*, partitions: int = 4) -> Iterator[MemoryRig]:
    """A ``MemoryRig`` whose logs are closed at the end."""
    rig = MemoryRig(partitions=partitions)
    try:
        yield rig
    finally:
        rig.close()


@contextmanager
def kafka_rig(
    bootstrap: str, protocol: Literal["auto", "consumer", "classic"], *, partitions: int = 4
) -> Iterator[KafkaRig]:
    """A ``KafkaRig`` whose logs are closed at the end."""
    rig = KafkaRig(bootstrap, protocol, partitions=partitions)
    try:
        yield rig
    finally:
        rig.close()


def poll_until(condition: Callable[[], object], *logs: EventLog, within_ms: float = 10_000, what: str = "") -> None:
    """Poll these logs until the condition holds; records that come are of no interest."""

    def polled() -> object:
        for log in logs:
            log.poll(0.02, 1000)
        return condition()

    until(polled, within_ms=within_ms, what=what)


def join(log: EventLog, partitions: int) -> Owner:
    """Subscribe and wait until all of so many partitions are ours."""
    owner = Owner()
    log.subscribe(owner)
    poll_until(lambda: len(owner.holds) == partitions, log, within_ms=20_000, what="all partitions")
    return owner


def joined(log: EventLog, partitions: int) -> Owner:
    """Like ``join``, and every partition is read from its start."""
    owner = join(log, partitions)
    for partition in owner.holds:
        log.seek(partition, FROM_THE_START)
    return owner


def read(log: EventLog, count: int, *, limit: int = 1000, within_ms: float = 15_000) -> list[Received]:
    """Poll until so many records have come."""
    records: list[Received] = []

    def enough() -> bool:
        records.extend(log.poll(0.05, limit))
        assert len(records) >= count, f"{len(records)} of {count} records"
        return True

    until(enough, within_ms=within_ms, what=f"{count} records")
    return records


def read_to_end(log: EventLog, partition: int, topic: Inbound) -> list[Received]:
    """Poll until the end of that partition was hit."""
    records: list[Received] = []
    end = log.end_offsets(partition)[topic]

    def hit() -> bool:
        records.extend(log.poll(0.05, 1000))
        return log.reached_end(partition, topic) >= end

    until(hit, what=f"the end of {topic} {partition}")
    return records
