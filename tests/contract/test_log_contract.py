"""What every ``EventLog`` does, whatever it is made of. Each test is a behaviour over the port alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pytest
from confluent_kafka import murmur2
from log_rigs import (
    FROM_THE_START,
    Acks,
    LogRig,
    Owner,
    join,
    joined,
    kafka_rig,
    memory_rig,
    poll_until,
    read,
    read_to_end,
)
from servers import KafkaServer
from support import until

from ductor_stream.errors import OwnershipLost
from ductor_stream.ports import INBOUND, UNREAD, EventLog, Outgoing, TaskStand
from ductor_stream.testing.simulation.memory_log import MemoryLog

pytestmark = pytest.mark.usefixtures("rig")

N = 4


@pytest.fixture(params=["memory", "consumer", "classic"])
def rig(request: pytest.FixtureRequest) -> Iterator[LogRig]:
    """One rig per implementation, and per group protocol of Kafka."""
    if request.param == "memory":
        with memory_rig(partitions=N) as in_memory:
            yield in_memory
        return
    kafka: KafkaServer = request.getfixturevalue("kafka")
    with kafka_rig(kafka.bootstrap, request.param, partitions=N) as made:
        yield made


@pytest.fixture
def log(rig: LogRig) -> EventLog:
    return rig.open()


def outgoing(rig: LogRig, *values: bytes, partition: int | None = 0, topic: str = "") -> list[Outgoing]:
    return [Outgoing(topic or rig.topics.run_events, b"run", value, [("h", b"1")], partition) for value in values]


# -- reading ---------------------------------------------------------------------------------


def test_a_member_is_confirmed_and_nobody_else(log: EventLog) -> None:
    """Protocol 5: asked of the group itself, whatever this process believes."""
    assert not log.still_member()
    joined(log, N)
    assert log.still_member()


def test_nothing_is_read_before_seek(rig: LogRig, log: EventLog) -> None:
    for partition in range(N):
        rig.write("run-events", partition, [b"early"])
    join(log, N)
    log.seek(1, FROM_THE_START)
    seen = read_to_end(log, 1, "run-events")
    # Partition 1 flows; the others are held back although their records have long been there.
    rig.write("run-events", 1, [b"late"])
    seen += read(log, 1)
    assert [(record.partition, record.value) for record in seen] == [(1, b"early"), (1, b"late")]


def test_records_come_as_they_were_written_in_order(rig: LogRig, log: EventLog) -> None:
    rig.write("run-events", 2, [b"%d" % n for n in range(500)], key=b"order-42", headers=[("a", b"1"), ("b", None)])
    joined(log, N)
    records = read(log, 500)
    assert [record.offset for record in records] == list(range(500))
    assert [record.value for record in records] == [b"%d" % n for n in range(500)]
    assert {(record.topic, record.partition, record.key) for record in records} == {("run-events", 2, b"order-42")}
    assert list(records[0].headers) == [("a", b"1"), ("b", None)]


def test_all_inbound_topics_are_read(rig: LogRig, log: EventLog) -> None:
    for topic in INBOUND:
        rig.write(topic, 0, [topic.encode()])
    joined(log, N)
    assert {(record.topic, record.value) for record in read(log, 3)} == {(topic, topic.encode()) for topic in INBOUND}


def test_null_keys_and_values_come_as_none(rig: LogRig, log: EventLog) -> None:
    rig.write("run-events", 0, [None], key=None)
    joined(log, N)
    [record] = read(log, 1)
    assert (record.key, record.value, list(record.headers)) == (None, None, [])


def test_a_poll_returns_no_more_than_its_limit(rig: LogRig, log: EventLog) -> None:
    rig.write("run-events", 0, [b"x"] * 50)
    joined(log, N)
    left = 50
    while left:
        batch = log.poll(0.5, 7)
        assert len(batch) <= 7
        left -= len(batch)


def test_reading_begins_where_seek_says(rig: LogRig, log: EventLog) -> None:
    rig.write("run-events", 0, [b"%d" % n for n in range(10)])
    join(log, N)
    log.seek(0, {"run-events": 7, "attempt-results": 0, "wakeups": UNREAD})
    assert [record.offset for record in read(log, 3)] == [7, 8, 9]


@pytest.mark.parametrize("target", [0, 150, 299, 1990])
def test_nothing_fetched_before_a_seek_comes_after_it(rig: LogRig, log: EventLog, target: int) -> None:
    rig.write("run-events", 0, [b"%d" % n for n in range(2000)])
    rig.write("run-events", 1, [b"%d" % n for n in range(2000)])
    joined(log, N)
    read(log, 300, limit=100)
    # The client holds prefetched records of both partitions now.
    log.seek(0, {"run-events": target})
    got = [record for record in read(log, 2000 - target) if record.partition == 0]
    got += [record for record in read_to_end(log, 0, "run-events") if record.partition == 0]
    assert [record.offset for record in got] == list(range(target, 2000))


def test_seeking_again_and_again_loses_and_doubles_nothing(rig: LogRig, log: EventLog) -> None:
    rig.write("run-events", 0, [b"%d" % n for n in range(400)])
    joined(log, N)
    for start in (300, 5, 399, 0, 120):
        log.seek(0, {"run-events": start})
        assert [record.offset for record in read_to_end(log, 0, "run-events")] == list(range(start, 400))


def test_seek_of_a_foreign_partition_is_refused(rig: LogRig, log: EventLog) -> None:
    joined(log, N)
    with pytest.raises(OwnershipLost):
        log.seek(N + 3, FROM_THE_START)


def test_a_paused_partition_rests_and_goes_on_where_it_stood(rig: LogRig, log: EventLog) -> None:
    rig.write("run-events", 0, [b"%d" % n for n in range(300)])
    joined(log, N)
    first = read(log, 20, limit=10)
    log.pause([0])
    rig.write("run-events", 1, [b"other"] * 3)
    others = read(log, 3)
    assert {record.partition for record in others} == {1}
    log.resume([0])
    rest = read(log, 300 - len(first))
    assert [record.offset for record in first + rest] == list(range(300))


def test_seek_does_not_end_a_pause(rig: LogRig, log: EventLog) -> None:
    rig.write("run-events", 0, [b"%d" % n for n in range(5)])
    joined(log, N)
    read(log, 5)
    log.pause([0])
    log.seek(0, {"run-events": 1})
    rig.write("run-events", 1, [b"other"])
    assert [record.partition for record in read(log, 1)] == [1]
    log.resume([0])
    assert [record.offset for record in read(log, 4)] == [1, 2, 3, 4]


# -- ends ------------------------------------------------------------------------------------


def test_the_end_is_told_when_it_is_hit(rig: LogRig, log: EventLog) -> None:
    join(log, N)
    assert log.reached_end(0, "run-events") == UNREAD
    rig.write("run-events", 0, [b"x"] * 3)
    log.seek(0, FROM_THE_START)
    poll_until(lambda: log.reached_end(0, "run-events") == 3, log)
    assert log.end_offsets(0)["run-events"] == 3
    rig.write("run-events", 0, [b"x"])
    poll_until(lambda: log.reached_end(0, "run-events") == 4, log)
    log.seek(0, {"run-events": 0})
    assert log.reached_end(0, "run-events") == UNREAD


def test_the_end_is_not_told_before_its_records(rig: LogRig, log: EventLog) -> None:
    rig.write("run-events", 0, [b"x"] * 100)
    joined(log, N)
    seen = 0
    while seen < 100:
        seen += len(log.poll(0.5, 10))
        assert log.reached_end(0, "run-events") in ((UNREAD,) if seen < 100 else (UNREAD, 100))


def test_start_and_end_of_every_inbound_topic(rig: LogRig, log: EventLog) -> None:
    rig.write("attempt-results", 3, [b"x"] * 2)
    assert log.start_offsets(3) == {"run-events": 0, "attempt-results": 0, "wakeups": 0}
    assert log.end_offsets(3) == {"run-events": 0, "attempt-results": 2, "wakeups": 0}
    written = {("run-events", 3): 0, ("attempt-results", 3): 2, ("wakeups", 3): 0}
    assert log.written_ends([3]) == written
    assert log.written_ends([]) == {}


def test_topics_are_told_by_their_full_names(rig: LogRig, log: EventLog) -> None:
    counts, ids = log.partition_counts(), log.topic_ids()
    for topic in INBOUND:
        assert counts[rig.topics.inbound(topic)] == N
    assert counts.keys() == ids.keys()
    assert len(set(ids.values())) == len(ids)
    assert rig.topics.tasks("work") in counts
    assert log.hidden_topics() == frozenset()


# -- producing -------------------------------------------------------------------------------


def test_a_call_is_acknowledged_once_when_all_of_it_is_there(rig: LogRig, log: EventLog) -> None:
    joined(log, N)
    first, second, none = Acks(), Acks(), Acks()
    log.produce(outgoing(rig, *[b"%d" % n for n in range(200)]), first)
    log.produce(outgoing(rig, b"x", partition=1), second)
    log.produce([], none)
    # Never from within produce: the caller has not noted yet what it awaits.
    assert first.calls == second.calls == none.calls == []
    assert log.flush(20) == 0
    assert first.calls == second.calls == none.calls == [[]]
    records = read(log, 201)
    assert [record.value for record in records if record.partition == 0] == [b"%d" % n for n in range(200)]
    assert list(records[0].headers) == [("h", b"1")]
    assert first.calls == second.calls == none.calls == [[]]


def test_acknowledgements_come_by_polling_alone(rig: LogRig, log: EventLog) -> None:
    acks = Acks()
    join(log, N)
    log.produce(outgoing(rig, b"x"), acks)
    poll_until(lambda: acks.calls, log)
    assert acks.calls == [[]]


def test_without_a_partition_the_key_decides_as_in_java(rig: LogRig, log: EventLog) -> None:
    keys = [b"run-%d" % n for n in range(40)] + ["Straße/日本".encode()]
    joined(log, N)
    log.produce([Outgoing(rig.topics.run_events, key, b"x", [], None) for key in keys], Acks())
    records = read(log, len(keys))
    assert {record.key: record.partition for record in records} == {key: murmur2(key, N) for key in keys}


def test_what_can_never_be_produced_is_permanent_and_hurts_nobody(rig: LogRig, log: EventLog) -> None:
    acks = Acks()
    large, illegal = b"x" * 3_000_000, "no such/topic name"
    records = [
        *outgoing(rig, b"before", partition=2),
        *outgoing(rig, large),
        *outgoing(rig, b"illegal", topic=illegal, partition=None),
        *outgoing(rig, b"after", partition=2),
    ]
    log.produce(records, acks)
    until(lambda: log.flush(0.5) == 0, within_ms=20_000)
    [failed] = acks.calls
    assert {(each.record.value[:10], each.permanent) for each in failed} == {(b"x" * 10, True), (b"illegal", True)}
    # librdkafka itself says so only once, and calls the topic of the next record unknown.
    again = Acks()
    log.produce(outgoing(rig, b"illegal", topic=illegal, partition=None), again)
    until(lambda: log.flush(0.5) == 0, within_ms=20_000)
    [[refused]] = again.calls
    assert refused.permanent
    joined(log, N)
    assert [record.value for record in read(log, 2)] == [b"before", b"after"]


def test_an_unknown_topic_is_not_permanent_and_holds_nobody_back(rig: LogRig, log: EventLog) -> None:
    gone, good = Acks(), Acks()
    log.produce(outgoing(rig, b"lost", topic=rig.topics.tasks("nowhere"), partition=None), gone)
    log.produce(outgoing(rig, b"good"), good)
    until(lambda: log.flush(0.01) >= 0 and good.calls, within_ms=5_000)
    assert gone.calls == []
    until(lambda: log.flush(0.5) == 0, within_ms=20_000)
    [[failed]] = gone.calls
    assert (failed.record.value, failed.permanent) == (b"lost", False)
    assert failed.error


def test_a_partition_that_does_not_exist_gives_way_to_the_key(rig: LogRig, log: EventLog) -> None:
    acks = Acks()
    joined(log, N)
    log.produce(outgoing(rig, b"x", partition=N + 7), acks)
    [record] = read(log, 1)
    assert record.partition == murmur2(b"run", N)
    poll_until(lambda: acks.calls, log)
    assert acks.calls == [[]]


def test_where_the_task_topics_stand(rig: LogRig, log: EventLog) -> None:
    """R9, protocol 15: asked without waiting, and about the task topics alone."""
    topic, acks = rig.topics.tasks("work"), Acks()
    log.produce(outgoing(rig, b"a", b"b", topic=topic, partition=1), acks)
    until(lambda: log.flush(0.5) == 0 and log.partition_counts().get(topic), within_ms=20_000)

    def told() -> Mapping[tuple[str, int], TaskStand]:
        question = log.ask_tasks()
        return until(question, what="an answer")

    def whole() -> Mapping[tuple[str, int], TaskStand]:
        """A partition whose leader does not answer yet is left out."""
        found = told()
        assert {(topic, 0), (topic, 1)} <= found.keys() and found[topic, 1].end == 2, found
        return found

    stands = until(whole, what="both records")
    assert {name for name, _ in stands} == {topic}
    assert (stands[topic, 1].start, stands[topic, 0].end) == (0, 0)
    assert stands[topic, 1].passed == 0 or isinstance(log, MemoryLog)


# -- membership ------------------------------------------------------------------------------


def test_partitions_go_to_the_next_member_when_one_closes(rig: LogRig, log: EventLog) -> None:
    owner = joined(log, N)
    log.store_offsets(0, {"run-events": 0, "attempt-results": UNREAD, "wakeups": 0})
    log.close()
    assert owner.holds == set()
    assert owner.heard == [("assigned", frozenset(range(N))), ("revoked", frozenset(range(N)))]
    join(rig.open(), N)


def test_two_members_share_whole_partitions(rig: LogRig, log: EventLog) -> None:
    first = joined(log, N)
    other, second = rig.open(), Owner()
    other.subscribe(second)

    def shared() -> bool:
        log.poll(0.01, 100)
        other.poll(0.01, 100)
        return len(first.holds) == len(second.holds) == N // 2

    until(shared, within_ms=30_000)
    assert first.holds | second.holds == set(range(N))
