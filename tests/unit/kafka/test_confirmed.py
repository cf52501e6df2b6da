"""What the group is asked so that it says whether we are its member: nothing that lag tools would take for news."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import TopicPartition
from support import until

from ductor_stream.kafka import group
from ductor_stream.kafka.group import GroupMember, Joining
from ductor_stream.ports import INBOUND
from ductor_stream.protocol.topics import Topics

TOPICS = Topics("shop")


class Client:
    """Holds partition 0 of each inbound topic; ``known`` is what is committed there, ``answers`` whether the broker does."""

    def __init__(self) -> None:
        self.known = -1001
        self.committing: list[int] = []
        self.answers = threading.Event()
        self.answers.set()

    def subscribe(self, topics: list[str], *, on_assign: Callable[[Any, Any], None], **_others: Any) -> None:
        self.assign = lambda: on_assign(self, [TopicPartition(topic, 0) for topic in topics])

    def incremental_assign(self, places: list[TopicPartition]) -> None: ...
    def pause(self, places: list[TopicPartition]) -> None: ...
    def close(self) -> None: ...

    def committed(self, places: list[TopicPartition], _timeout: float) -> list[TopicPartition]:
        return [TopicPartition(each.topic, each.partition, self.known) for each in places]

    def commit(self, *, offsets: list[TopicPartition], asynchronous: bool) -> list[TopicPartition]:
        assert not asynchronous
        self.committing += [each.offset for each in offsets]
        self.answers.wait()
        return offsets


class Nobody:
    def assigned(self, partitions: frozenset[int]) -> None: ...
    def revoked(self, partitions: frozenset[int]) -> None: ...
    def lost(self, partitions: frozenset[int]) -> None: ...


def joined() -> tuple[GroupMember, Client]:
    client: Any = Client()
    member = GroupMember(Joining(TOPICS, lambda _protocol, _heard: client, ("consumer",)), Nobody())
    client.assign()
    return member, client


def test_a_place_that_was_sought_is_asked_about_with_its_position() -> None:
    member, client = joined()
    member.positions.seek(0, {INBOUND[1]: 7})
    assert member.confirmed()
    assert client.committing == [7]
    member.close()


@pytest.mark.parametrize(("known", "asked"), [(41, 41), (-1001, 0)])
def test_where_none_was_sought_what_is_committed_stays(known: int, asked: int) -> None:
    member, client = joined()
    client.known = known
    assert member.confirmed()
    assert client.committing == [asked]
    member.close()


def test_a_group_that_does_not_answer_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group, "CONFIRM_SECONDS", 0.01)
    member, client = joined()
    client.answers.clear()
    assert not member.confirmed()
    assert not member.confirmed()
    assert len(client.committing) == 1, "the first question is still out"
    client.answers.set()
    monkeypatch.undo()
    until(member.confirmed, what="asked again")
    member.close()
