"""Worker processes on a real broker; tasks are produced by hand, as any client in any language would."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest
from confluent_kafka import Consumer, TopicPartition
from support import fresh_name, until
from task_rig import Rig
from topic_config import APPENDED, NOBODYS_TIME, configure

from ductor_stream.kafka.topics import delete_topics

if TYPE_CHECKING:
    from servers import KafkaServer

    from ductor_stream.dev.kafka import EmbeddedKafka


@pytest.fixture
def rig(kafka: KafkaServer, tmp_path: Path) -> Iterator[Rig]:
    made = Rig(kafka.bootstrap, tmp_path)
    yield made
    made.close()


@pytest.fixture(params=["classic", "consumer"])
def pair(kafka: KafkaServer, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Rig]:
    made = Rig(kafka.bootstrap, tmp_path, partitions=2, protocol=request.param)
    yield made
    made.close()


def test_tasks_produced_by_hand_are_completed(rig: Rig) -> None:
    rig.worker("a")
    for n in range(50):
        rig.task("quick", n)
    until(lambda: sorted(rig.outputs()) == list(range(50)))
    until(lambda: rig.committed() == (50, []))
    assert len(rig.ran()) == 50


def test_after_kill_9_what_was_done_behind_a_slow_attempt_is_not_run_again(rig: Rig) -> None:
    first = rig.worker("a")
    rig.task("gated", "slow")
    for n in range(1, 6):
        rig.task("quick", n)
    until(lambda: rig.committed() == (0, [(1, 6)]))
    first.kill()
    first.wait(10)
    rig.worker("b")
    until(lambda: "b slow" in rig.ran(), within_ms=30_000)
    rig.let("slow")
    until(lambda: rig.committed() == (6, []))
    assert [line for line in rig.ran() if line.startswith("b ")] == ["b slow"]
    assert sorted(map(str, rig.outputs())) == ["1", "2", "3", "4", "5", "b slow"]


def test_sigterm_finishes_what_runs_and_leaves_the_rest_to_the_next(rig: Rig) -> None:
    first = rig.worker("a", concurrency=1)
    rig.task("gated", "slow")
    rig.task("quick", 2)
    until(lambda: rig.ran() == ["a slow"])
    first.send_signal(signal.SIGTERM)
    until(lambda: "draining" in rig.log_of("a"))
    rig.let("slow")
    assert first.wait(20) == 0
    assert "ended: stopped" in rig.log_of("a")
    assert rig.committed() == (1, [])
    assert rig.outputs() == ["a slow"]
    rig.worker("b")
    until(lambda: rig.outputs() == ["a slow", 2])
    assert rig.ran() == ["a slow", "b 2"]


def test_what_outlasts_the_grace_is_left_uncommitted(rig: Rig) -> None:
    first = rig.worker("a", grace_s=0.3)
    rig.task("stubborn")
    until(lambda: rig.ran() == ["a stubborn"])
    first.send_signal(signal.SIGTERM)
    assert first.wait(20) == 0
    assert rig.committed()[0] in (-1001, 0)
    assert rig.outputs() == []


def test_a_step_that_blocks_for_ever_is_a_failed_attempt_and_the_worker_works_on(rig: Rig) -> None:
    rig.worker("a", concurrency=8)
    rig.task("gated", "never", start_to_close_ms=300)
    until(lambda: rig.reports())
    assert rig.reports()[0]["error"]["code"] == "timeout_start_to_close"
    rig.task("quick", 2)
    until(lambda: rig.outputs()[1:] == [2])
    until(lambda: rig.committed() == (2, []))


def test_a_worker_that_has_lost_over_a_quarter_of_its_slots_drains_and_exits(rig: Rig) -> None:
    child = rig.worker("a", concurrency=3)
    rig.task("gated", "never", start_to_close_ms=300)
    assert child.wait(20) == 1
    assert "ended: exhausted" in rig.log_of("a")
    assert rig.committed() == (1, [])
    rig.worker("b")
    rig.task("quick", 2)
    until(lambda: rig.outputs()[1:] == [2])


def test_a_step_that_ends_its_workers_is_given_up_and_its_partition_moves_on(rig: Rig) -> None:
    """Decision 15: each worker that takes its place is gone at once, until one of them knows better."""
    for n, step in enumerate(["quick", "deadly", "quick"]):
        rig.task(step, *([n] if step == "quick" else []))
    deaths = 0
    while True:
        worker = rig.worker(f"w{deaths}", instance="w", ready=False)
        until(lambda: worker.poll() is not None or len(rig.reports()) >= 3, within_ms=60_000)  # noqa: B023
        if worker.poll() is None:
            break
        deaths += 1
        assert (worker.returncode, deaths <= 5) == (7, True), rig.log_of(f"w{deaths - 1}")
    assert deaths == sum(line.endswith(" deadly") for line in rig.ran()) == 4
    until(lambda: rig.committed() == (3, []))
    done = {report["outcome"]: report for report in rig.reports()}
    assert done["failed"]["error"]["code"] == "worker_lost"
    assert {report.get("output") for report in rig.reports()} == {0, 2, None}


def test_a_stop_on_attempt_control_reaches_the_attempt(rig: Rig) -> None:
    rig.worker("a")
    rig.task("stoppable", node_id="7")
    until(lambda: rig.ran())
    stop = {"type": "attempt.stop", "run_id": "run-1", "execution": 1, "node_id": "7", "generation": 1, "reason": "enough"}  # fmt: skip
    rig.put(rig.topics.attempt_control, msgspec.json.encode(stop))
    until(lambda: rig.reports())
    assert rig.reports()[0]["outcome"] == "cancelled"


def test_hostile_records_go_to_the_dead_letters_byte_for_byte(rig: Rig) -> None:
    rig.worker("a")
    hostile = [b"", b"\xff\xfe\xfd", b"{", b'{"type":"run.start"}', b"\xc3\x01" + b"0" * 20, b"[" * 5000]
    for value in hostile:
        rig.put(rig.topics.tasks("default"), value)
    rig.task("quick", 2)
    until(lambda: rig.outputs() == [2])
    until(lambda: rig.committed() == (len(hostile) + 1, []))
    reader = Consumer({"bootstrap.servers": rig.bootstrap, "group.id": fresh_name("r"), "auto.offset.reset": "earliest"})  # fmt: skip
    reader.assign([TopicPartition(rig.topics.dead_letters, 0, 0)])
    letters: list[bytes | None] = []
    while len(letters) < len(hostile):
        message = reader.poll(10)
        assert message is not None, f"only {letters}"
        letters.append(message.value())
    reader.close()
    assert letters == hostile


def test_a_rebalance_runs_nothing_twice(pair: Rig) -> None:
    pair.worker("a", concurrency=16)
    for partition in (0, 1):
        pair.task("gated", f"slow-{partition}", partition=partition)
        for n in range(3):
            pair.task("quick", 10 * partition + n, partition=partition)
    until(lambda: len(pair.ran()) == 8)
    until(lambda: pair.committed(0) == pair.committed(1) == (0, [(1, 4)]))
    pair.worker("b", concurrency=16)
    until(lambda: 4 in (pair.committed(0)[0], pair.committed(1)[0]), within_ms=30_000, what="the handover's commit")
    for partition in (0, 1):
        for n in range(5, 8):
            pair.task("quick", 10 * partition + n, partition=partition)
    until(lambda: len(pair.ran()) == 14, within_ms=30_000)
    until(lambda: any(line.startswith("b ") for line in pair.ran()))
    pair.let("slow-0")
    pair.let("slow-1")
    until(lambda: len(pair.reports()) == 14)
    assert len({line.split()[1] for line in pair.ran()}) == 14, "nothing ran twice"
    until(lambda: (pair.committed(0)[0], pair.committed(1)[0]) == (7, 7))


def test_a_killed_workers_tasks_go_to_the_other_one(pair: Rig) -> None:
    first = pair.worker("a")
    second = pair.worker("b")
    assert second.poll() is None
    for partition in (0, 1):
        pair.task("gated", f"slow-{partition}", partition=partition)
    until(lambda: len(pair.ran()) == 2, within_ms=30_000)
    first.kill()
    until(lambda: any(len([x for x in pair.ran() if x.endswith(f"slow-{p}")]) == 2 for p in (0, 1)) or len({x for x in pair.ran() if x.startswith("b ")}) == 2, within_ms=30_000)  # fmt: skip
    pair.let("slow-0")
    pair.let("slow-1")
    until(lambda: sorted(set(pair.outputs())) == ["b slow-0", "b slow-1"], within_ms=30_000)


def test_a_broker_that_goes_away_and_comes_back_costs_nothing(own_kafka: EmbeddedKafka, tmp_path: Path) -> None:
    rig = Rig(own_kafka.bootstrap, tmp_path)
    try:
        rig.worker("a")
        rig.task("gated", "slow")
        until(lambda: rig.ran() == ["a slow"])
        own_kafka.kill()
        until(lambda: "Kafka does not answer" in (rig.problems("a") or ""), within_ms=30_000)
        rig.let("slow")
        own_kafka.restart()
        rig.until_ready("a")
        rig.task("quick", 2)
        # A result may be told twice when the group gave the partition anew; it must not run twice.
        until(lambda: set(rig.outputs()) == {"a slow", 2}, within_ms=60_000)
        until(lambda: rig.committed() == (2, []), within_ms=30_000)
        assert rig.ran() == ["a slow", "a 2"]
    finally:
        rig.close()


def test_a_worker_ends_on_sigterm_also_while_the_broker_is_away(own_kafka: EmbeddedKafka, tmp_path: Path) -> None:
    rig = Rig(own_kafka.bootstrap, tmp_path)
    try:
        child = rig.worker("a")
        own_kafka.kill()
        until(lambda: "Kafka does not answer" in (rig.problems("a") or ""), within_ms=30_000)
        child.send_signal(signal.SIGTERM)
        assert child.wait(60) == 0
    finally:
        rig.close()


def test_a_queue_whose_topic_comes_later_is_waited_for(rig: Rig) -> None:
    delete_topics(rig.admin, [rig.topics.tasks("default")])
    rig.worker("a", ready=False)
    until(lambda: "does not exist yet" in (rig.problems("a") or ""), within_ms=30_000)
    rig.create()
    rig.until_ready("a")
    rig.task("quick", 1)
    until(lambda: rig.outputs() == [1], within_ms=30_000)


def test_topics_that_are_deleted_and_created_anew_are_read_from_their_beginning(rig: Rig) -> None:
    rig.worker("a")
    for n in range(5):
        rig.task("quick", n)
    until(lambda: rig.committed() == (5, []))
    delete_topics(rig.admin, [rig.topics.tasks("default")])
    rig.create()
    for n in range(5, 8):
        rig.task("quick", n)
    until(lambda: len(rig.ran()) == 8, within_ms=60_000)
    until(lambda: rig.committed() == (3, []))


def test_results_whose_time_the_broker_refuses_are_sent_again(rig: Rig) -> None:
    """R9: as from a host whose clock is an hour ahead, and the records beside them in one request."""
    configure(rig.bootstrap, rig.topics.attempt_results, NOBODYS_TIME)
    rig.worker("a")
    for n in range(20):
        rig.task("quick", n)
    until(lambda: "is sent again" in rig.log_of("a"), within_ms=30_000)
    configure(rig.bootstrap, rig.topics.attempt_results, APPENDED)
    until(lambda: sorted(rig.outputs()) == list(range(20)), within_ms=30_000)
    assert len(rig.ran()) == 20
