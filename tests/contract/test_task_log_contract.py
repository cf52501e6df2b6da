"""What every ``ports.TaskLog`` does, in memory and on a real broker."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Protocol

import msgspec
import pytest
from confluent_kafka import Producer
from support import fresh_name, until
from worker_rigs import MemoryTaskLog

from ductor_stream.engine.ids import Fence
from ductor_stream.kafka.task_log import KafkaTaskLog, TaskLogConfig
from ductor_stream.kafka.topics import AdminConfig, create_topics, plan
from ductor_stream.ports import Outgoing, TaskLog, TaskPosition, TaskRecord, TaskSource, Undeliverable
from ductor_stream.protocol.topics import Topics

if TYPE_CHECKING:
    from servers import KafkaServer


class Owner:
    """A ``TaskOwnership`` that notes what it hears."""

    def __init__(self) -> None:
        self.positions: dict[int, TaskPosition] = {}
        self.on_revoked: Callable[[frozenset[int]], None] = lambda _: None
        self.early: list[TaskRecord] = []
        """What came before the first read of the test."""

    def assigned(self, positions: Mapping[int, TaskPosition]) -> None:
        self.positions.update(positions)

    def revoked(self, partitions: frozenset[int]) -> None:
        self.on_revoked(partitions)
        for partition in partitions:
            del self.positions[partition]

    def lost(self, partitions: frozenset[int]) -> None:
        self.revoked(partitions)

    def uncommitted(self, partitions: frozenset[int]) -> None:
        raise AssertionError(partitions)


class Rig(Protocol):
    log: TaskLog
    results: str

    def join(self) -> tuple[TaskSource, Owner]: ...
    def write(self, *values: bytes) -> None: ...
    def order_stop(self, reason: str) -> None: ...
    def close(self) -> None: ...


class MemoryRig:
    results = "ductor.t.attempt-results"

    def __init__(self) -> None:
        self.memory = MemoryTaskLog()
        self.log: TaskLog = self.memory

    def join(self) -> tuple[TaskSource, Owner]:
        source, owner = self.memory.source("q"), Owner()
        source.subscribe(owner)
        source.change("assigned", 0)
        source.poll(0, 0)
        return source, owner

    def write(self, *values: bytes) -> None:
        for value in values:
            self.memory.append("q", value)

    def order_stop(self, reason: str) -> None:
        self.memory.order_stop(Fence("r", 1, "1", 1), reason)

    def close(self) -> None:
        self.log.close()


class KafkaRig:
    def __init__(self, bootstrap: str, protocol: str) -> None:
        self.topics = Topics(fresh_name("tl"))
        create_topics(AdminConfig(bootstrap=bootstrap, topics=self.topics), plan(self.topics, ["q"], partitions=1))
        self.results = self.topics.attempt_results
        self.log: TaskLog = KafkaTaskLog(TaskLogConfig(bootstrap=bootstrap, topics=self.topics, protocol=protocol))  # type: ignore[arg-type]
        self._producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})

    def join(self) -> tuple[TaskSource, Owner]:
        source, owner = self.log.source("q"), Owner()
        source.subscribe(owner)
        until(lambda: owner.early.extend(source.poll(0.05, 0)) or owner.positions, within_ms=30_000)
        return source, owner

    def _put(self, topic: str, value: bytes) -> None:
        self._producer.produce(topic, value, b"r")
        assert self._producer.flush(10) == 0

    def write(self, *values: bytes) -> None:
        for value in values:
            self._put(self.topics.tasks("q"), value)

    def order_stop(self, reason: str) -> None:
        body = {"type": "attempt.stop", "execution": 1, "node_id": "1", "generation": 1, "reason": reason}
        self._put(self.topics.attempt_control, msgspec.json.encode(body))

    def close(self) -> None:
        self.log.close()
        self._producer.flush(1)


@pytest.fixture(params=["memory", "classic", "consumer"])
def rig(request: pytest.FixtureRequest) -> Iterator[Rig]:
    made: Rig
    if request.param == "memory":
        made = MemoryRig()
    else:
        kafka: KafkaServer = request.getfixturevalue("kafka")
        made = KafkaRig(kafka.bootstrap, request.param)
    yield made
    made.close()


def _read(source: TaskSource, owner: Owner, count: int) -> list[TaskRecord]:
    found, owner.early = owner.early, []
    until(lambda: found.extend(source.poll(0.05, 100)) or len(found) >= count)
    return found


def test_a_queue_is_read_from_its_earliest_record_and_a_position_is_found_again_with_its_metadata(rig: Rig) -> None:
    rig.write(b"a", b"b", b"c")
    source, owner = rig.join()
    assert owner.positions == {0: TaskPosition(None)}
    assert [(record.partition, record.offset, record.value) for record in _read(source, owner, 3)] == [
        (0, 0, b"a"),
        (0, 1, b"b"),
        (0, 2, b"c"),
    ]
    assert source.commit({0: TaskPosition(1, "1BB")}, wait=False)
    assert source.commit({0: TaskPosition(2, "1BC")}, wait=True)
    source.close()
    again, later = rig.join()
    assert later.positions == {0: TaskPosition(2, "1BC")}
    assert [record.value for record in _read(again, later, 1)] == [b"c"]
    again.close()


def test_what_is_held_is_revoked_at_the_end_and_can_still_be_committed(rig: Rig) -> None:
    source, owner = rig.join()
    owner.on_revoked = lambda _: source.commit({0: TaskPosition(0, "1BB")}, wait=True) or pytest.fail("refused")
    source.close()
    assert owner.positions == {}
    source, owner = rig.join()
    assert owner.positions == {0: TaskPosition(0, "1BB")}
    source.close()


def test_no_more_is_handed_out_than_asked_for_and_nothing_while_paused(rig: Rig) -> None:
    rig.write(*(str(n).encode() for n in range(10)))
    source, owner = rig.join()
    first, owner.early = owner.early, []
    until(lambda: first.extend(source.poll(0.05, 2)) or first)
    assert len(first) <= 3
    source.pause([0])
    assert source.poll(0.05, 100) == []
    source.resume([0])
    rest = _read(source, owner, 10 - len(first))
    assert [record.offset for record in first + rest] == list(range(10))
    source.close()


def test_a_produced_record_is_heard_of_once(rig: Rig) -> None:
    heard: list[Undeliverable | None] = []
    rig.log.produce(Outgoing(rig.results, b"r", b"{}", [("ductor-wire", b"1")]), heard.append)
    until(lambda: heard)
    assert rig.log.flush(10) == 0
    assert heard == [None]


def test_stops_are_read_from_when_the_log_was_opened(rig: Rig) -> None:
    until(lambda: rig.log.stops(0.05) == [] and rig.log.problem() == "", within_ms=30_000)
    rig.order_stop("enough")
    found: list[TaskRecord] = []
    until(lambda: found.extend(rig.log.stops(0.1)) or found)
    assert [msgspec.json.decode(record.value or b"")["reason"] for record in found] == ["enough"]


def test_on_kafka_a_refusal_says_whether_another_try_can_help(kafka: KafkaServer) -> None:
    rig = KafkaRig(kafka.bootstrap, "classic")
    heard: dict[str, Undeliverable | None] = {}
    cases = {"illegal": ("no such/topic", b""), "unknown": (fresh_name("nowhere"), b""), "large": (rig.results, b"x" * 1_200_000)}  # fmt: skip
    for name, (topic, value) in cases.items():
        rig.log.produce(Outgoing(topic, b"r", value), lambda failed, name=name: heard.update({name: failed}))  # type: ignore[misc]
    until(lambda: len(heard) == 3, within_ms=30_000)
    assert {name: failed.permanent for name, failed in heard.items() if failed} == {
        "illegal": True,
        "unknown": False,
        "large": True,
    }
    again: list[Undeliverable | None] = []
    rig.log.produce(Outgoing("no such/topic", b"r", b""), again.append)
    until(lambda: again)
    assert again[0] is not None and again[0].permanent and "no such/topic" in again[0].error
    rig.close()
