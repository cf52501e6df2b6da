"""Events that arrive off their run's home partition are sent home as rows, and applied there once (R12, protocol 8)."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewPartitions
from rig import CRC32, Rig
from support import until


def away(rig: Rig, count: int) -> list[str]:
    """Run ids that live on partition 0."""
    return [run_id for run_id in (f"r{n}" for n in range(200)) if rig.home(run_id) == 0][:count]


@pytest.mark.moves("ductor_sent_home")
def test_any_partitioner_will_do(rig: Rig) -> None:
    """R12: starts and signals of a plain librdkafka client; the plain worker's results come by crc32 too."""
    ids = [f"r{n}" for n in range(20)]
    worker = rig.worker()
    first = rig.coordinator()
    second = rig.coordinator(ready=False)
    until(lambda: (len(first.owned), len(second.owned)) == (1, 1), within_ms=20_000, what="a partition each")
    for run_id in ids:
        rig.start(run_id, workflow="order", input=2, partitioner=CRC32)
        rig.signal(run_id, run_id, partitioner=CRC32)
    rig.until_status("completed", *ids)
    rig.check()
    assert all(rig.run(run_id)["result"] == [0, 2, run_id, 0, 2] for run_id in ids)
    assert first.count("ductor_sent_home") + second.count("ductor_sent_home") >= 20
    assert set(worker.effects.values()) == {1}
    assert len(worker.effects) == 80


def test_the_owner_dies_between_the_row_and_its_application(rig: Rig) -> None:
    """Protocol 8, R5, R6: the source's offset is passed, the row waits, and the next owner applies it once."""
    ids = away(rig, 6)
    rig.worker()
    child = rig.child("before-inbox", instance="one")
    for run_id in ids:
        rig.start(run_id, workflow="words", input=2, partition=1)
        for word in ("a", "b"):
            rig.signal(run_id, word, partition=1)
    child.wait_dead()
    waiting = rig.rows("select partition, kind from eec_inbox where ns = {ns}")
    assert waiting
    assert {(row["partition"], row["kind"]) for row in waiting} == {(0, "event")}
    rig.coordinator(instance="one")
    rig.until_status("completed", *ids)
    rig.check()
    assert all(rig.run(run_id)["result"] == ["a", "b"] for run_id in ids)


def test_hints_are_lost(rig: Rig) -> None:
    """Protocol 8: the hint is only a hint; the owner of the other partition finds the row by itself."""
    ids = away(rig, 6)

    def deaf(coordinator: Any) -> None:
        poll, produce = coordinator.log.poll, coordinator.log.produce
        coordinator.log.poll = lambda timeout, limit: [r for r in poll(timeout, limit) if r.topic != "wakeups"]

        def send(records: Any, acknowledged: Any) -> None:
            produce([r for r in records if r.topic != rig.topics.wakeups], acknowledged)

        coordinator.log.produce = send
        coordinator.intake.hint = lambda partitions: None

    first = rig.coordinator(prepare=deaf)
    second = rig.coordinator(prepare=deaf, ready=False)
    until(lambda: (len(first.owned), len(second.owned)) == (1, 1), within_ms=20_000, what="a partition each")
    rig.worker()
    rig.start(*ids, partition=1)
    rig.until_status("completed", *ids)
    rig.check()


def test_more_partitions_than_run_partitions(rig: Rig) -> None:
    """Protocol 7, R12: N stays what it was; what arrives on the partitions above it is read and sent home."""
    running = rig.coordinator()
    rig.start("before")
    running.stop()
    admin = AdminClient({"bootstrap.servers": rig.bootstrap})
    names = [rig.topics.run_events, rig.topics.attempt_results, rig.topics.wakeups]
    for future in admin.create_partitions([NewPartitions(name, 4) for name in names]).values():
        future.result(10)
    rig.renew_clients()
    running = rig.coordinator()
    rig.worker()
    ids = [f"r{n}" for n in range(8)]
    for number, run_id in enumerate(ids):
        rig.start(run_id, partition=number % 4)
    rig.until_status("completed", "before", *ids)
    rig.delete(rig.topics.dead_letters)
    known = running.coordinator.log.partition_counts
    until(lambda: rig.topics.dead_letters not in known(), what="the owner knowing that its topic is gone")
    rig.send(rig.topics.run_events, "x", b"rubbish", partition=3)
    waiting = "select id from eec_inbox where ns = {ns} and partition = 3 and kind = 'produce'"
    until(lambda: rig.rows(waiting), what="a dead letter that waits for its topic, on behalf of partition 3")
    rig.create()
    rig.check()
    assert {row["partition"] for row in rig.rows("select partition from eec_workflow_run where ns = {ns}")} == {0, 1}
    assert [letter.value for letter in rig.letters()] == [b"rubbish"]
