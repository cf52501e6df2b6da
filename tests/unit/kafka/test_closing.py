"""A client that waits for a broker which never answers does not keep a process from ending."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import TopicPartition
from support import until

from ductor_stream.errors import DuctorError, LogUnavailable
from ductor_stream.kafka import group, task_assignment, task_source
from ductor_stream.kafka.bounded import GivenUp, within
from ductor_stream.kafka.group import GroupMember, Joining
from ductor_stream.kafka.task_assignment import TaskAssignment
from ductor_stream.kafka.task_stands import GroupOffsets
from ductor_stream.ports import TaskPosition
from ductor_stream.protocol.topics import Topics


@pytest.fixture
def broker() -> Iterator[threading.Event]:
    """Set when the broker answers."""
    event = threading.Event()
    yield event
    event.set()


class Hanging:
    """A client that waits for its broker, and then calls back."""

    def __init__(self, broker: threading.Event) -> None:
        self.broker = broker
        self.called_back = threading.Event()

    def subscribe(self, _topics: list[str], *, on_revoke: Any, **_others: Any) -> None:
        self.on_revoke = on_revoke

    def close(self) -> None:
        self.broker.wait()
        self.on_revoke(self, [])
        self.called_back.set()

    def commit(self, **_what: Any) -> list[Any]:
        self.broker.wait()
        return []


class Nobody:
    def assigned(self, partitions: frozenset[int]) -> None: ...
    def revoked(self, partitions: frozenset[int]) -> None: ...
    def lost(self, partitions: frozenset[int]) -> None: ...


def test_what_comes_back_in_time_is_returned_or_raised() -> None:
    def fail() -> None:
        raise DuctorError("no")

    assert within(5, lambda: 7) == 7
    assert within(5, lambda: None) is None
    with pytest.raises(DuctorError, match="no"):
        within(5, fail)


def test_what_does_not_is_given_up(broker: threading.Event) -> None:
    with pytest.raises(GivenUp, match="no answer within 0.01 s"):
        within(0.01, broker.wait)


def test_a_coordinator_leaves_a_group_whose_broker_is_gone(
    broker: threading.Event, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(group, "CLOSE_SECONDS", 0.01)
    client: Any = Hanging(broker)
    member = GroupMember(Joining(Topics("shop"), lambda _protocol, _heard: client, ("consumer",)), Nobody())
    with caplog.at_level(logging.WARNING):
        member.close()
    assert "its broker does not answer" in caplog.text
    with caplog.at_level(logging.INFO):
        caplog.clear()
        broker.set()
        assert client.called_back.wait(10)
    assert "revoked" not in caplog.text  # nobody listens any more


def test_a_workers_last_commit_is_not_waited_for_for_ever(
    broker: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(task_assignment, "CLOSE_SECONDS", 0.01)
    client: Any = Hanging(broker)
    ownership: Any = None
    assignment = TaskAssignment(client, "tasks", ownership)
    assignment._held.add(0)
    assert assignment.commit({0: TaskPosition(7, "")}, wait=True) is False


def test_a_worker_leaves_a_group_whose_broker_is_gone(
    broker: threading.Event, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(task_source, "CLOSE_SECONDS", 0.01)
    client: Any = Hanging(broker)
    config = task_source.SourceConfig("tasks", "shop-workers", lambda *_: client, ("consumer",), lambda: True)
    source = task_source.KafkaTaskSource(config)
    ownership: Any = None
    source.subscribe(ownership)
    with caplog.at_level(logging.WARNING):
        source.close()
    assert "group shop-workers is not left in good order" in caplog.text


class Reader:
    """A consumer that names a group, as slow as its broker."""

    def __init__(self, broker: threading.Event) -> None:
        self.broker = broker
        self.asked, self.closed = threading.Event(), threading.Event()
        self.used_when_closed = False

    def committed(self, places: list[TopicPartition], _timeout: float) -> list[TopicPartition]:
        self.asked.set()
        self.broker.wait()
        self.used_when_closed = self.closed.is_set()
        return places

    def close(self) -> None:
        self.closed.set()


def test_a_group_that_cannot_be_asked_about_is_left_out() -> None:
    """Such as while a token is not to be had: what was asked is answered all the same, and so is what is asked next."""

    def make(group_id: str) -> Any:
        if group_id == "one":
            raise LogUnavailable("no token")
        return Reader(answers)

    answers = threading.Event()
    answers.set()
    groups = GroupOffsets(make)
    for _ in range(2):
        answer = groups.ask({name: [TopicPartition(name, 0, 7)] for name in ("one", "two")}, 10)
        until(lambda answer=answer: answer() is not None, what="an answer")
        assert answer() == {("two", 0): 7}
    groups.close()


def test_a_question_about_groups_does_not_meet_its_clients_end(broker: threading.Event) -> None:
    """Seen in the project's CI: a coordinator stopped while a reader of one more group was being made."""
    readers: dict[str, Reader] = {}

    def make(group_id: str) -> Any:
        return readers.setdefault(group_id, Reader(broker))

    groups = GroupOffsets(make)
    answer = groups.ask({name: [TopicPartition(name, 0, 7)] for name in ("one", "two", "three")}, 10)
    until(lambda: "one" in readers, what="the first question")
    assert readers["one"].asked.wait(30)
    groups.close()
    groups.close()
    assert answer() is None
    assert not readers["one"].closed.is_set(), "closed under the question"
    broker.set()
    assert readers["one"].closed.wait(30)
    assert not readers["one"].used_when_closed
    assert readers.keys() == {"one"}, "no client is made for one who has left"
    assert answer() == {("one", 0): 7}
