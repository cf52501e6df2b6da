"""``KafkaLog`` on real Kafka: what only a broker, a rebalance or an outage shows (the rest: tests/contract)."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Literal

import pytest
from confluent_kafka import KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from log_rigs import FROM_THE_START, Acks, KafkaRig, Owner, join, joined, kafka_rig, poll_until, read, read_to_end
from servers import KafkaServer
from support import fresh_name, until

from ductor_stream.dev.kafka import EmbeddedKafka
from ductor_stream.errors import InvalidConfig, LogUnavailable, TopicsNotReady
from ductor_stream.kafka.log import KafkaLog, KafkaLogConfig
from ductor_stream.kafka.offsets import Gap
from ductor_stream.kafka.topics import delete_topics
from ductor_stream.ports import INBOUND, Outgoing, Received
from ductor_stream.protocol.topics import Topics

N = 4
BOTH = pytest.mark.parametrize("rig", ["consumer", "classic"], indirect=True)


@pytest.fixture
def rig(request: pytest.FixtureRequest, kafka: KafkaServer) -> Iterator[KafkaRig]:
    with kafka_rig(kafka.bootstrap, getattr(request, "param", "consumer"), partitions=N) as made:
        yield made


def values(records: list[Received]) -> list[bytes | None]:
    return [record.value for record in records]


def poll_all(*logs: KafkaLog) -> list[Received]:
    return [record for log in logs for record in log.poll(0.01, 1000)]


class Member:
    """``log_member.py`` as a process: a member of the group that can be killed."""

    def __init__(self, rig: KafkaRig, instance_id: str, protocol: str) -> None:
        script = Path(__file__).with_name("log_member.py")
        self.process = subprocess.Popen(
            [sys.executable, str(script), rig.bootstrap, rig.topics.namespace, protocol, instance_id],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self._lines: SimpleQueue[str] = SimpleQueue()
        self.holds = ""
        self._reader = Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line.strip())

    def now_holds(self) -> str:
        try:
            while True:
                line = self._lines.get_nowait()
                self.holds = self.holds if line.startswith("#") else line
        except Empty:
            return self.holds

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(10)
        self._reader.join(10)
        assert self.process.stdout is not None
        self.process.stdout.close()


@pytest.fixture
def member(rig: KafkaRig) -> Iterator[Callable[..., Member]]:
    started: list[Member] = []

    def start(instance_id: str = "-", protocol: str = "auto") -> Member:
        started.append(Member(rig, instance_id, protocol))
        return started[-1]

    yield start
    for each in started:
        each.kill()


# -- rebalances ------------------------------------------------------------------------------


@BOTH
def test_what_the_group_gives_is_told_before_the_wait_for_records_ends(rig: KafkaRig) -> None:
    """A partition that comes while nothing is written is taken at once, however long the owner would wait."""
    log, owner = rig.open(), Owner()
    log.subscribe(owner)
    waiting = Thread(target=lambda: log.poll(3600, 1000))
    waiting.start()
    until(lambda: owner.holds == set(range(N)), within_ms=40_000)
    waiting.join(20)
    assert not waiting.is_alive()


@BOTH
def test_members_hold_the_same_partitions_of_all_three_topics(rig: KafkaRig) -> None:
    logs = [rig.open() for _ in range(3)]
    owners = [Owner() for _ in logs]
    for log, owner in zip(logs, owners, strict=True):
        log.subscribe(owner)

    def spread() -> bool:
        poll_all(*logs)
        held = sorted(len(owner.holds) for owner in owners)
        assert held == [1, 1, 2], held
        return True

    until(spread, within_ms=40_000)
    assert set().union(*(owner.holds for owner in owners)) == set(range(N))
    for log, owner in zip(logs, owners, strict=True):
        assert log.protocol == rig.protocol
        consumer = log._member._client  # type: ignore[union-attr]
        assert {(each.topic, each.partition) for each in consumer.assignment()} == {
            (rig.topics.inbound(topic), partition) for topic in INBOUND for partition in owner.holds
        }


@BOTH
def test_every_record_is_read_by_the_owner_while_members_come_and_go(rig: KafkaRig) -> None:
    first = rig.open()
    holder = joined(first, N)
    rig.write("run-events", 0, [b"a0"])
    rig.write("run-events", 3, [b"a3"])
    assert set(values(read(first, 2))) == {b"a0", b"a3"}
    second, other = rig.open(), Owner()
    second.subscribe(other)
    poll_until(lambda: len(other.holds) == 2, first, second, within_ms=30_000)
    poll_until(lambda: len(holder.holds) == 2, first, second, within_ms=30_000)
    for log, owner in ((first, holder), (second, other)):
        for partition in owner.holds:
            log.seek(partition, {"run-events": 1 if partition in (0, 3) else 0})
    for partition in range(N):
        rig.write("run-events", partition, [b"b%d" % partition])
    got = {id(log): values(read(log, 2)) for log in (first, second)}
    assert set(got[id(first)]) == {b"b%d" % partition for partition in holder.holds}
    assert set(got[id(second)]) == {b"b%d" % partition for partition in other.holds}
    second.close()
    poll_until(lambda: len(holder.holds) == N, first, within_ms=30_000)


@BOTH
def test_nothing_of_a_partition_comes_after_it_was_revoked(rig: KafkaRig) -> None:
    for partition in range(N):
        rig.write("run-events", partition, [b"%d" % n for n in range(1000)])
    log, seen = rig.open(), list[tuple[str, object]]()

    class Noting(Owner):
        def revoked(self, partitions: frozenset[int]) -> None:
            super().revoked(partitions)
            seen.append(("revoked", partitions))

    owner = Noting()
    log.subscribe(owner)
    poll_until(lambda: len(owner.holds) == N, log, within_ms=20_000)
    for partition in range(N):
        log.seek(partition, FROM_THE_START)
    assert read(log, 5, limit=5)
    # A second member takes half of them while thousands of prefetched records of each lie in the client.
    second, other = rig.open(), Owner()
    second.subscribe(other)

    def handed_over() -> bool:
        for record in log.poll(0.01, 5):
            assert record.partition in owner.holds
            seen.append(("record", record.partition))
        second.poll(0.01, 5)
        return len(other.holds) == 2

    until(handed_over, within_ms=30_000)
    assert any(what == "revoked" for what, _ in seen)


@BOTH
def test_errors_of_the_owner_come_out_of_poll_and_the_group_lives_on(rig: KafkaRig) -> None:
    class Stumbling(Owner):
        stumbles = True

        def revoked(self, partitions: frozenset[int]) -> None:
            super().revoked(partitions)
            if self.stumbles:
                raise ValueError("stumbled")

    log, owner = rig.open(), Stumbling()
    log.subscribe(owner)
    poll_until(lambda: len(owner.holds) == N, log, within_ms=20_000)
    second, other = rig.open(), Owner()
    second.subscribe(other)

    def stumbles() -> bool:
        second.poll(0.01, 10)
        try:
            log.poll(0.01, 10)
        except ValueError:
            return True
        return False

    until(stumbles, within_ms=30_000)
    owner.stumbles = False
    poll_until(lambda: len(other.holds) == 2, log, second, within_ms=30_000)


@pytest.mark.parametrize("protocol", ["auto", "classic"])
def test_a_killed_process_comes_back_under_its_name_and_disturbs_nobody(
    rig: KafkaRig, member: Callable[..., Member], protocol: Literal["auto", "classic"]
) -> None:
    rig.protocol = protocol
    log, owner = rig.open(instance_id="a"), Owner()
    log.subscribe(owner)
    process = member("b", protocol)

    def shared() -> bool:
        log.poll(0.01, 10)
        held = process.now_holds()
        return len(owner.holds) == 2 and held.count(",") == 1

    until(shared, within_ms=30_000)
    held, heard = process.now_holds(), len(owner.heard)
    process.kill()
    again = member("b", protocol)
    poll_until(lambda: again.now_holds() == held, log, within_ms=5_000)
    assert owner.heard[heard:] == []


def test_a_killed_member_s_partitions_go_to_the_others(rig: KafkaRig, member: Callable[..., Member]) -> None:
    rig.protocol = "auto"
    process = member()
    until(lambda: process.now_holds().count(",") == N - 1, within_ms=20_000)
    log, owner = rig.open(), Owner()
    log.subscribe(owner)
    poll_until(lambda: len(owner.holds) == 2, log, within_ms=20_000)
    process.kill()
    poll_until(lambda: len(owner.holds) == N, log, within_ms=60_000)


@BOTH
def test_who_is_out_of_the_group_is_not_confirmed_though_it_has_not_heard_of_it(rig: KafkaRig) -> None:
    """Protocol 5: it does not poll, and so it believes that all is as it was; the group says no, and takes it back."""
    log = rig.open(options={"max.poll.interval.ms": 6_000})
    owner = join(log, N)
    assert log.still_member()
    until(lambda: not log.still_member(), within_ms=20_000, what="the group without it")
    assert len(owner.holds) == N
    poll_until(log.still_member, log, within_ms=20_000, what="a member again")


def test_members_of_both_protocols_share_a_group(rig: KafkaRig) -> None:
    modern = rig.open()
    first = joined(modern, N)
    rig.protocol = "classic"
    old, second = rig.open(), Owner()
    old.subscribe(second)
    poll_until(lambda: len(first.holds) == len(second.holds) == 2, modern, old, within_ms=40_000)
    assert first.holds | second.holds == set(range(N))
    modern.close()
    poll_until(lambda: len(second.holds) == N, old, within_ms=40_000)


# -- lost ranges, transactions, foreign clients -------------------------------------------------


@BOTH
def test_a_lost_range_is_told_and_reading_goes_on_behind_it(rig: KafkaRig) -> None:
    for partition in (0, 1):
        rig.write("run-events", partition, [b"%d" % n for n in range(100)])
    log = rig.open()
    joined(log, N)
    read(log, 200)
    admin = AdminClient({"bootstrap.servers": rig.bootstrap, "log_level": 0})
    [deleted] = admin.delete_records([TopicPartition(rig.topics.run_events, 0, 50)]).values()
    assert deleted.result(10).low_watermark == 50
    rig.write("run-events", 1, [b"%d" % n for n in range(100, 200)])
    log.seek(0, {"run-events": 10})
    records = read(log, 150)
    assert log.gaps() == [Gap("run-events", 0, 10, 50)]
    assert log.gaps() == []
    assert [record.offset for record in records if record.partition == 0] == list(range(50, 100))
    # The other partition neither lost nor doubled anything by it.
    assert [record.offset for record in records if record.partition == 1] == list(range(100, 200))


@BOTH
def test_a_position_beyond_the_end_is_told_too(rig: KafkaRig) -> None:
    rig.write("run-events", 0, [b"%d" % n for n in range(5)])
    log = rig.open()
    join(log, N)
    log.seek(0, {"run-events": 400})
    assert [record.offset for record in read(log, 5)] == [0, 1, 2, 3, 4]
    assert log.gaps() == [Gap("run-events", 0, 400, 0)]


@BOTH
def test_topics_deleted_and_created_anew_are_read_from_their_start(rig: KafkaRig) -> None:
    log = rig.open()
    owner = joined(log, N)
    for partition in range(N):
        rig.write("run-events", partition, [b"old"] * 3)
    read(log, 3 * N)
    before = log.topic_ids()
    delete_topics(rig.admin, [rig.topics.inbound(topic) for topic in INBOUND])
    rig.create()
    rig.renew_writer()
    # More than were read of the old log: the old position exists in the new one.
    for partition in range(N):
        rig.write("run-events", partition, [b"new-%d" % n for n in range(10)])
    heard, got = len(owner.heard), dict[tuple[int, int], bytes | None]()

    def all_read() -> bool:
        nonlocal heard
        for record in log.poll(0.05, 1000):
            got[record.partition, record.offset] = record.value
        for what, partitions in owner.heard[heard:]:
            for partition in partitions if what == "assigned" else ():
                log.seek(partition, FROM_THE_START)
        heard = len(owner.heard)
        assert len(got) == 10 * N, got
        return True

    until(all_read, within_ms=30_000)
    assert got == {(partition, n): b"new-%d" % n for partition in range(N) for n in range(10)}
    after = log.topic_ids()
    assert all(before[rig.topics.inbound(topic)] != after[rig.topics.inbound(topic)] for topic in INBOUND)


def test_an_open_transaction_holds_the_end_back(rig: KafkaRig) -> None:
    log = rig.open()
    joined(log, N)
    rig.write("run-events", 0, [b"0"])
    source = Producer({"bootstrap.servers": rig.bootstrap, "transactional.id": fresh_name(), "log_level": 0})
    source.init_transactions(20)
    source.begin_transaction()
    source.produce(rig.topics.run_events, b"1", b"k", 0)
    source.flush(20)
    rig.write("run-events", 0, [b"2"])
    assert log.end_offsets(0)["run-events"] == 1
    assert log.written_ends([0, 1]) == {
        (topic, partition): 3 if (topic, partition) == ("run-events", 0) else 0
        for topic in INBOUND
        for partition in (0, 1)
    }
    assert values(read_to_end(log, 0, "run-events")) == [b"0"]
    source.commit_transaction(20)
    # 0, 1, 2 and the marker of the commit.
    until(lambda: log.end_offsets(0)["run-events"] == 4)
    assert log.written_ends([0])["run-events", 0] == 4
    assert values(read_to_end(log, 0, "run-events")) == [b"1", b"2"]
    assert log.reached_end(0, "run-events") == 4


def test_records_of_an_aborted_transaction_are_not_read(rig: KafkaRig) -> None:
    log = rig.open()
    joined(log, N)
    source = Producer({"bootstrap.servers": rig.bootstrap, "transactional.id": fresh_name(), "log_level": 0})
    source.init_transactions(20)
    source.begin_transaction()
    source.produce(rig.topics.run_events, b"never", b"k", 0)
    source.flush(20)
    source.abort_transaction(20)
    rig.write("run-events", 0, [b"after"])
    assert values(read(log, 1)) == [b"after"]


def test_records_of_a_client_with_another_partitioner_come_wherever_they_landed(rig: KafkaRig) -> None:
    log = rig.open()
    joined(log, N)
    stranger = Producer({"bootstrap.servers": rig.bootstrap, "log_level": 0})
    keys = {b"order-%d" % n for n in range(60)}
    for key in keys:
        stranger.produce(rig.topics.run_events, b"{}", key)
    assert stranger.flush(20) == 0
    records = read(log, len(keys))
    assert {record.key for record in records} == keys
    assert len({record.partition for record in records}) == N


def test_offsets_are_committed_for_lag_tools(rig: KafkaRig) -> None:
    log = rig.open()
    joined(log, N)
    log.store_offsets(2, {"run-events": 17, "attempt-results": 3, "wakeups": -1})

    def committed() -> list[int]:
        log.poll(0.01, 10)
        places = [TopicPartition(rig.topics.inbound(topic), 2) for topic in INBOUND]
        return [each.offset for each in log._member._client.committed(places, 5)]  # type: ignore[union-attr]

    until(lambda: committed()[:2] == [17, 3])
    assert committed()[2] < 0


# -- the producer --------------------------------------------------------------------------------


def test_a_fatal_error_of_the_producer_gives_all_back_and_the_next_record_goes_out(rig: KafkaRig) -> None:
    log, acks, later = rig.open(), Acks(), Acks()
    joined(log, N)
    producer = log._producer
    records = [Outgoing(rig.topics.run_events, b"k", b"%d" % n, [], 0) for n in range(50)]
    log.produce(records, acks)
    producer._heard_error(KafkaError(KafkaError._FENCED, "injected", fatal=True))
    poll_until(lambda: acks.calls, log)
    [failed] = acks.calls
    # Each record was either taken before, or is given back: none is forgotten, none is called permanent.
    assert not any(each.permanent for each in failed)
    assert {each.record.value for each in failed} <= {record.value for record in records}
    log.produce([Outgoing(rig.topics.run_events, b"k", b"after", [], 1)], later)
    poll_until(lambda: later.calls, log)
    assert later.calls == [[]]
    assert len(acks.calls) == 1


def test_what_the_broker_does_not_answer_for_is_given_back_in_time(own_kafka: EmbeddedKafka) -> None:
    with kafka_rig(own_kafka.bootstrap, "consumer", partitions=N) as rig:
        log, acks = rig.open(options={"message.timeout.ms": 3000}), Acks()
        log.produce([Outgoing(rig.topics.run_events, b"k", b"x", [], 0)], acks)
        assert log.flush(20) == 0
        own_kafka.stop()
        log.produce([Outgoing(rig.topics.run_events, b"k", b"%d" % n, [], 0) for n in range(10)], acks)
        until(lambda: log.flush(0.1) == 0, within_ms=20_000)
        assert acks.calls[0] == []
        assert [(each.record.value, each.permanent) for each in acks.calls[1]] == [
            (b"%d" % n, False) for n in range(10)
        ]
        own_kafka.start()


def test_records_go_to_a_topic_that_was_deleted_and_created_anew(rig: KafkaRig) -> None:
    log, first, second = rig.open(), Acks(), Acks()
    tasks = rig.topics.tasks("work")
    log.produce([Outgoing(tasks, b"k", b"old", [], None)], first)
    assert log.flush(20) == 0
    delete_topics(rig.admin, [tasks])
    rig.create()

    def produced() -> bool:
        # It may be told as not permanent first, while the client still knows the old topic.
        second.calls.clear()
        log.produce([Outgoing(tasks, b"k", b"new", [], None)], second)
        log.flush(10)
        return second.calls == [[]]

    until(produced, within_ms=30_000)


# -- outages and refusals --------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", ["consumer", "classic"])
def test_a_restart_of_the_broker_is_survived(
    own_kafka: EmbeddedKafka, protocol: Literal["consumer", "classic"]
) -> None:
    with kafka_rig(own_kafka.bootstrap, protocol, partitions=N) as rig:
        log, acks = rig.open(), Acks()
        owner = joined(log, N)
        rig.write("run-events", 0, [b"before"])
        assert values(read(log, 1)) == [b"before"]
        assert until(log.healthy)
        own_kafka.stop()
        log.produce([Outgoing(rig.topics.run_events, b"k", b"meanwhile", [], 0)], acks)
        told = list[LogUnavailable]()
        got = list[Received]()

        def poll() -> bool:
            try:
                got.extend(log.poll(0.05, 100))
            except LogUnavailable as error:
                told.append(error)
            return False

        until(lambda: poll() or told, within_ms=10_000, what="told")
        # Longer than the classic session: this member keeps its partitions, a classic one would lose them meanwhile.
        if protocol == "consumer":
            until(lambda: poll() or not log.healthy(), within_ms=10_000, what="unhealthy")
            with pytest.raises(LogUnavailable):
                log.end_offsets(0)
        own_kafka.start()
        until(lambda: poll() or (acks.calls and log.healthy()), within_ms=30_000, what="healthy and acknowledged")
        assert acks.calls == [[]]
        until(lambda: poll() or len(owner.holds) == N, within_ms=30_000, what="all partitions")
        if owner.heard[1:]:
            for partition in range(N):
                log.seek(partition, {"run-events": 1 if partition == 0 else 0})
        until(lambda: poll() or values(got) == [b"meanwhile"], within_ms=30_000, what="the record of meanwhile")


def test_a_broker_without_the_new_protocol_gets_the_classic_one(tmp_path: Path) -> None:
    server = EmbeddedKafka(tmp_path / "classic", extra={"group.coordinator.rebalance.protocols": "classic"})
    server.start()
    try:
        with kafka_rig(server.bootstrap, "auto", partitions=N) as rig:
            log = rig.open()
            rig.write("run-events", 0, [b"x"])
            joined(log, N)
            assert log.protocol == "classic"
            assert values(read(log, 1)) == [b"x"]
            rig.protocol = "consumer"
            strict = rig.open()
            strict.subscribe(Owner())
            with pytest.raises(InvalidConfig, match="not supported"):
                until(lambda: strict.poll(0.05, 10), within_ms=10_000)
    finally:
        server.stop()


def test_a_group_cannot_be_joined_without_topics(kafka: KafkaServer) -> None:
    log = KafkaLog(KafkaLogConfig(bootstrap=kafka.bootstrap, topics=Topics(fresh_name())))
    try:
        with pytest.raises(TopicsNotReady, match="topics create"):
            log.subscribe(Owner())
    finally:
        log.close()


def test_without_a_broker_questions_are_answered_by_an_error() -> None:
    config = KafkaLogConfig(bootstrap="127.0.0.1:1", topics=Topics("nowhere"), request_timeout=0.5, close_timeout=0.1)
    log = KafkaLog(config)
    try:
        with pytest.raises(LogUnavailable):
            log.subscribe(Owner())
        with pytest.raises(LogUnavailable):
            log.topic_ids()
        assert not log.healthy()
        assert log.problem()
    finally:
        log.close()
