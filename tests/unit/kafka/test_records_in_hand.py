"""What goes wrong beside records that were just read is told by the next poll: raised at once, they would be lost with it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from ductor_stream.errors import LogUnavailable
from ductor_stream.kafka.group import GroupMember, Joining
from ductor_stream.kafka.log import KafkaLog
from ductor_stream.ports import INBOUND
from ductor_stream.protocol.topics import Topics

TOPICS = Topics("shop")


class Message:
    """Of partition 0 of the topic of requests."""

    def __init__(self, offset: int) -> None:
        self._offset = offset

    def topic(self) -> str:
        return TOPICS.run_events

    def partition(self) -> int:
        return 0

    def offset(self) -> int:
        return self._offset

    def error(self) -> None: ...
    def key(self) -> bytes:
        return b"k"

    def value(self) -> bytes:
        return b"{}"

    def headers(self) -> None: ...


class Client:
    """Holds partition 0 of each inbound topic; refuses to give any back."""

    def __init__(self) -> None:
        self.script: list[Callable[[], Message | None]] = []

    def subscribe(
        self, topics: list[str], *, on_assign: Callable[..., None], on_revoke: Callable[..., None], **_: Any
    ) -> None:
        self.assign = lambda: on_assign(self, [TopicPartition(topic, 0) for topic in topics])
        self.revoke = lambda: on_revoke(self, [TopicPartition(topics[0], 1)])

    def incremental_assign(self, places: list[TopicPartition]) -> None: ...
    def pause(self, places: list[TopicPartition]) -> None: ...
    def resume(self, places: list[TopicPartition]) -> None: ...
    def seek(self, place: TopicPartition) -> None: ...
    def offsets_for_times(self, places: list[TopicPartition], timeout: float) -> None: ...
    def close(self) -> None: ...

    def incremental_unassign(self, places: list[TopicPartition]) -> None:
        raise KafkaException(KafkaError(KafkaError._STATE))

    def poll(self, _timeout: float) -> Message | None:
        return self.script.pop(0)() if self.script else None

    def consume(self, _count: int, _timeout: float) -> list[Message]:
        return []


class Nobody:
    def assigned(self, partitions: frozenset[int]) -> None: ...
    def revoked(self, partitions: frozenset[int]) -> None: ...
    def lost(self, partitions: frozenset[int]) -> None: ...


def joined() -> tuple[GroupMember, Client]:
    client: Any = Client()
    member = GroupMember(Joining(TOPICS, lambda _protocol, _heard: client, ("consumer",)), Nobody())
    client.assign()
    member.positions.seek(0, {short: 5 for short in INBOUND})
    member.poll(0.0, 10)
    return member, client


def test_a_rebalance_that_cannot_be_followed_takes_no_records_along() -> None:
    member, client = joined()

    def both() -> Message:
        client.revoke()
        return Message(5)

    client.script = [both, lambda: Message(6)]
    assert [record.offset for record in member.poll(0.0, 10)] == [5]
    with pytest.raises(LogUnavailable, match="a rebalance could not be followed"):
        member.poll(0.0, 10)
    assert [record.offset for record in member.poll(0.0, 10)] == [6]
    member.close()


def test_without_records_it_is_told_at_once() -> None:
    member, client = joined()
    client.script = [client.revoke]
    with pytest.raises(LogUnavailable, match="a rebalance could not be followed"):
        member.poll(0.0, 10)
    member.close()


def test_a_producer_that_cannot_be_replaced_takes_no_records_along() -> None:
    member, client = joined()
    client.script = [lambda: Message(5)]
    served: list[float] = []

    class Producer:
        def serve(self, timeout: float = 0.0) -> None:
            served.append(timeout)
            if len(served) > 1:
                raise LogUnavailable("no token")

    log: Any = object.__new__(KafkaLog)
    log._producer, log._member, log._gaps = Producer(), member, []
    log._offsets = type("Offsets", (), {"mend": lambda _self, _positions: []})()
    log._notice_renewed = lambda _member: None
    assert [record.offset for record in log.poll(0.0, 10)] == [5]
    with pytest.raises(LogUnavailable, match="no token"):
        log.poll(0.0, 10)
    member.close()
