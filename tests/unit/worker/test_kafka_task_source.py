"""A queue's source over a client that the test plays: late answers, fatal errors, stale records."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import OFFSET_BEGINNING, KafkaError, KafkaException, TopicPartition
from support import until

from ductor_stream.errors import InvalidConfig
from ductor_stream.kafka import task_assignment, task_source
from ductor_stream.kafka.task_source import KafkaTaskSource, SourceConfig
from ductor_stream.ports import TaskPosition, TaskRecord

TOPIC = "ductor.t.tasks.q"


class Fetched:
    """A message as the client gives it."""

    def __init__(self, partition: int, offset: int, error: KafkaError | None = None) -> None:
        self._place = (partition, offset)
        self._error = error

    def error(self) -> KafkaError | None:
        return self._error

    def partition(self) -> int:
        return self._place[0]

    def offset(self) -> int:
        return self._place[1]

    def key(self) -> bytes:
        return b"k"

    def value(self) -> bytes:
        return b"v"

    def headers(self) -> None:
        return None


class Client:
    """What the source asks of a consumer; ``script`` runs one entry in each poll."""

    def __init__(self) -> None:
        self.script: deque[Callable[[], Any]] = deque()
        self.batch: list[Any] = []
        self.calls: list[tuple[str, Any]] = []
        self.answers: dict[int, Any] = {}
        self.on: dict[str, Callable[..., None]] = {}
        self.closed = False

    def subscribe(self, topics: list[str], **on: Callable[..., None]) -> None:
        self.on = on

    def assign_now(self, *partitions: int) -> None:
        self.on["on_assign"](self, [TopicPartition(TOPIC, p) for p in partitions])

    def take_now(self, how: str, *partitions: int) -> None:
        self.on[how](self, [TopicPartition(TOPIC, p) for p in partitions])

    def poll(self, timeout: float) -> Any:
        return self.script.popleft()() if self.script else None

    def consume(self, count: int, timeout: float) -> list[Any]:
        found, self.batch = self.batch, []
        return [each for each in found if not callable(each) or each()]

    def committed(self, partitions: list[TopicPartition], timeout: float) -> list[TopicPartition]:
        found = []
        for place in partitions:
            answer = self.answers.get(place.partition, -1001)
            if isinstance(answer, Exception):
                raise answer
            offset, metadata = answer if isinstance(answer, tuple) else (answer, "")
            found.append(TopicPartition(TOPIC, place.partition, offset, metadata))
        return found

    def incremental_assign(self, partitions: list[TopicPartition]) -> None:
        self.calls += [("assign", (p.partition, p.offset)) for p in partitions]

    def incremental_unassign(self, partitions: list[TopicPartition]) -> None:
        self.calls += [("unassign", p.partition) for p in partitions]

    def pause(self, partitions: list[TopicPartition]) -> None:
        self.calls += [("pause", p.partition) for p in partitions]

    def resume(self, partitions: list[TopicPartition]) -> None:
        self.calls += [("resume", p.partition) for p in partitions]

    def offsets_for_times(self, partitions: list[TopicPartition], timeout: float) -> None:
        self.calls.append(("wake", len(partitions)))

    def commit(self, *, offsets: list[TopicPartition], asynchronous: bool = True) -> Any:
        self.calls += [("commit", (p.partition, p.offset, p.metadata)) for p in offsets]
        return None if asynchronous else offsets

    def close(self) -> None:
        self.closed = True


class Owner:
    def __init__(self) -> None:
        self.heard: list[tuple[str, Any]] = []
        self.fails = False

    def assigned(self, positions: dict[int, TaskPosition]) -> None:
        self.heard.append(("assigned", dict(positions)))
        if self.fails:
            raise RuntimeError("the owner is broken")

    def revoked(self, partitions: frozenset[int]) -> None:
        self.heard.append(("revoked", set(partitions)))

    def lost(self, partitions: frozenset[int]) -> None:
        self.heard.append(("lost", set(partitions)))

    def uncommitted(self, partitions: frozenset[int]) -> None:
        self.heard.append(("uncommitted", set(partitions)))


class Rig:
    def __init__(self, *protocols: task_source.Protocol) -> None:
        self.clients: list[Client] = []
        self.made: list[str] = []
        self.known: bool | None = True
        self.owner = Owner()
        protocols = protocols or ("classic", "consumer")
        self.source = KafkaTaskSource(SourceConfig(TOPIC, "g", self._make, protocols, lambda: self.known))
        self.source.subscribe(self.owner)

    def _make(self, protocol: str, heard: Callable[..., None], committed: Callable[..., None]) -> Any:
        self.made.append(protocol)
        self.clients.append(Client())
        self.error, self.committed = heard, committed
        return self.clients[-1]

    @property
    def client(self) -> Client:
        return self.clients[-1]

    def poll(self, *script: Callable[[], Any], limit: int = 100) -> list[tuple[int, int]]:
        self.client.script.extend(script)
        records: list[TaskRecord] = self.source.poll(0, limit)
        return [(record.partition, record.offset) for record in records]


def test_reading_begins_where_the_group_stands_and_the_metadata_is_handed_over() -> None:
    rig = Rig()
    rig.client.answers = {0: (7, "1BB"), 1: -1001}
    assert rig.poll(lambda: rig.client.assign_now(0, 1)) == []
    assert rig.client.calls == [("assign", (0, 7)), ("assign", (1, OFFSET_BEGINNING))]
    assert rig.owner.heard == [("assigned", {0: TaskPosition(7, "1BB"), 1: TaskPosition(None)})]


def test_a_partition_whose_position_is_not_known_waits_until_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_assignment, "ASK_AGAIN_SECONDS", 0.0)
    rig = Rig()
    rig.client.answers = {0: KafkaException(KafkaError(KafkaError._TIMED_OUT))}
    rig.source._client.script.append(lambda: rig.client.assign_now(0))  # type: ignore[union-attr]
    assert rig.poll() == []
    assert rig.owner.heard == []
    assert ("pause", 0) in rig.client.calls
    assert rig.poll(lambda: Fetched(0, 0)) == [], "nothing is handed out of it"
    rig.client.answers = {0: (3, "")}
    assert rig.poll() == []
    assert rig.owner.heard == [("assigned", {0: TaskPosition(3, "")})]
    assert rig.client.calls[-1] == ("assign", (0, 3))
    assert rig.poll(lambda: Fetched(0, 3)) == [(0, 3)]


def test_what_was_fetched_before_its_partition_was_taken_is_dropped() -> None:
    rig = Rig()
    rig.poll(lambda: rig.client.assign_now(0, 1))
    rig.client.batch = [Fetched(1, 0), lambda: rig.client.take_now("on_revoke", 0), Fetched(0, 1)]
    assert rig.poll(lambda: Fetched(0, 0)) == [(1, 0)]
    assert rig.owner.heard[-1] == ("revoked", {0})


def test_what_poll_itself_returns_after_a_rebalance_is_handed_out() -> None:
    rig = Rig()
    rig.poll(lambda: rig.client.assign_now(0))

    def taken_and_given_back() -> Fetched:
        rig.client.take_now("on_revoke", 0)
        rig.client.assign_now(0)
        return Fetched(0, 5)

    assert rig.poll(taken_and_given_back) == [(0, 5)]


def test_positions_are_committed_with_their_metadata_only_of_what_is_ours() -> None:
    rig = Rig()
    rig.poll(lambda: rig.client.assign_now(0))
    rig.client.calls.clear()
    assert rig.source.commit({0: TaskPosition(5, "1BB"), 9: TaskPosition(1)}, wait=True)
    assert rig.client.calls == [("commit", (0, 5, "1BB"))]
    rig.committed(KafkaError(KafkaError.REBALANCE_IN_PROGRESS), [TopicPartition(TOPIC, 0, 5)])
    assert rig.owner.heard[-1] == ("uncommitted", {0})


def test_a_resume_wakes_a_client_of_which_all_was_paused() -> None:
    rig = Rig()
    rig.poll(lambda: rig.client.assign_now(0, 1))
    rig.client.calls.clear()
    rig.source.pause([0, 1, 9])
    rig.source.resume([0])
    rig.source.resume([1])
    assert sorted(rig.client.calls[:2]) == [("pause", 0), ("pause", 1)]
    assert rig.client.calls[2:] == [("resume", 0), ("wake", 1), ("resume", 1)]


def test_after_a_fatal_error_the_partitions_are_lost_and_another_client_joins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_source, "FIRST_REJOIN_SECONDS", 0.0)
    rig = Rig()
    rig.source._rejoin_seconds = 0.0
    rig.poll(lambda: rig.client.assign_now(0))
    first = rig.client
    # As the driver tells it: by its code, without the mark.
    fatal = KafkaError(KafkaError._FATAL, "fenced")
    assert not fatal.fatal()
    assert rig.poll(lambda: rig.error(fatal)) == []
    assert first.closed
    assert rig.owner.heard[-1] == ("lost", {0})
    until(lambda: rig.source.poll(0.01, 1) == [] and len(rig.clients) == 2)
    assert rig.made == ["classic", "classic"]
    assert rig.source.problem() == ""


def test_what_came_together_with_a_fatal_error_is_not_handed_out() -> None:
    """Its partitions are lost: whoever takes it would count from it, and commit past what was before it."""
    rig = Rig()
    rig.poll(lambda: rig.client.assign_now(0))

    def both() -> Fetched:
        rig.error(KafkaError(KafkaError._FATAL, "fenced"))
        return Fetched(0, 7)

    assert rig.poll(both) == []
    assert rig.owner.heard[-1] == ("lost", {0})


def test_a_name_that_another_process_has_taken_is_not_fought_for() -> None:
    """Twice it is taken back, since a broker that fails over may have lost our last join, and nobody else is there (found by
    chaos); whoever lives does the same."""
    rig = Rig()
    rig.poll(lambda: rig.client.assign_now(0))
    first, late = rig.client, rig.error
    taken = KafkaError(KafkaError._FATAL, KafkaError(KafkaError.FENCED_INSTANCE_ID).str())
    for joined in (2, 3):
        rig.source._rejoin_seconds = 0.0
        rig.poll(lambda: rig.error(taken))
        until(lambda many=joined: rig.source.poll(0.01, 1) == [] and len(rig.clients) == many)
    rig.client.script.append(lambda: rig.error(taken))
    with pytest.raises(InvalidConfig, match="DUCTOR_KAFKA_INSTANCE_ID"):
        rig.source.poll(0.0, 1)
    assert first.closed and rig.client.closed and len(rig.clients) == 3
    rig = Rig()
    late, first = rig.error, rig.client
    rig.source._rejoin_seconds = 0.0
    rig.poll(lambda: rig.error(KafkaError(KafkaError._FATAL, "fenced", True)))
    until(lambda: rig.source.poll(0.01, 1) == [] and len(rig.clients) == 2)
    late(taken)  # what a client still says that was closed
    assert rig.poll() == [] and rig.clients[-1] is not first


def test_a_protocol_that_the_broker_does_not_speak_is_followed_by_the_other() -> None:
    rig = Rig()
    unsupported = KafkaError(KafkaError.UNSUPPORTED_VERSION, "no", True)
    rig.poll(lambda: rig.error(unsupported))
    until(lambda: rig.source.poll(0.01, 1) == [] and len(rig.clients) == 2)
    assert rig.made == ["classic", "consumer"]
    rig.client.script.append(lambda: rig.error(unsupported))
    with pytest.raises(InvalidConfig, match="protocol = consumer"):
        rig.source.poll(0.0, 1)


def test_what_the_owner_raises_comes_out_of_poll() -> None:
    rig = Rig()
    rig.owner.fails = True
    with pytest.raises(RuntimeError, match="the owner is broken"):
        rig.poll(lambda: rig.client.assign_now(0))


def test_what_the_owner_raises_takes_no_tasks_along() -> None:
    rig = Rig()
    rig.poll(lambda: rig.client.assign_now(0))
    rig.owner.fails = True

    def both() -> Any:
        rig.client.assign_now(1)
        return Fetched(0, 7)

    assert rig.poll(both) == [(0, 7)]
    with pytest.raises(RuntimeError, match="the owner is broken"):
        rig.source.poll(0.0, 1)


def test_a_missing_topic_is_named() -> None:
    rig = Rig()
    assert rig.source.problem() == ""
    rig.known = None
    assert rig.source.problem() == ""
    rig.known = False
    assert f"topic {TOPIC} does not exist yet" in rig.source.problem()
