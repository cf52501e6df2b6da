"""Worker processes on a real broker; tasks are produced by hand, as any client in any language would."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from support import fresh_name, until
from worker_rigs import task_json

from ductor_stream.kafka.topics import AdminConfig, create_topics, delete_topics, plan
from ductor_stream.protocol.topics import Topics
from ductor_stream.worker.window import decode_runs

if TYPE_CHECKING:
    from servers import KafkaServer

    from ductor_stream.dev.kafka import EmbeddedKafka

CHILD = Path(__file__).resolve().parents[1] / "worker_child.py"


class Rig:
    """A namespace of its own with one queue, worker processes, and a reader of what they report."""

    def __init__(self, bootstrap: str, folder: Path, *, partitions: int = 1, protocol: str = "auto") -> None:
        self.bootstrap = bootstrap
        self.folder = folder
        self.topics = Topics(fresh_name("w"))
        self.partitions = partitions
        self.protocol = protocol
        self.admin = AdminConfig(bootstrap=bootstrap, topics=self.topics)
        self.create()
        self.children: list[subprocess.Popen[str]] = []
        self._producer = Producer({"bootstrap.servers": bootstrap})
        self._reader = Consumer({"bootstrap.servers": bootstrap, "group.id": fresh_name("r"), "auto.offset.reset": "earliest"})  # fmt: skip
        self._reader.assign([TopicPartition(self.topics.attempt_results, p, 0) for p in range(partitions)])
        self._seen: list[dict[str, Any]] = []

    def create(self) -> None:
        create_topics(self.admin, plan(self.topics, ["default"], partitions=self.partitions))

    # -- workers ----------------------------------------------------------------------------

    def worker(self, name: str, *, concurrency: int = 4, grace_s: float = 10, ready: bool = True) -> subprocess.Popen[str]:  # fmt: skip
        config = {
            "name": name,
            "namespace": self.topics.namespace,
            "bootstrap": self.bootstrap,
            "folder": str(self.folder),
            "concurrency": concurrency,
            "grace_s": grace_s,
            "protocol": self.protocol,
        }
        with (self.folder / f"{name}.log").open("w") as log:
            child = subprocess.Popen(
                [sys.executable, str(CHILD), json.dumps(config)], stdout=log, stderr=subprocess.STDOUT, text=True
            )
        self.children.append(child)
        if ready:
            self.until_ready(name)
        return child

    def problems(self, name: str) -> str | None:
        """What the worker says is wrong; empty when it is ready, None before it says anything."""
        path = self.folder / f"{name}.problems"
        return path.read_text() if path.exists() else None

    def until_ready(self, name: str) -> None:
        until(lambda: self.problems(name) == "", within_ms=30_000, what=f"worker {name} is ready")

    def log_of(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text()

    def ran(self) -> list[str]:
        """What ran where, in order: ``worker argument``."""
        path = self.folder / "ran"
        return path.read_text().splitlines() if path.exists() else []

    def let(self, gate: str) -> None:
        (self.folder / gate).touch()

    # -- the topics -------------------------------------------------------------------------

    def task(self, step: str, *arguments: Any, partition: int = 0, **fields: Any) -> None:
        fields.setdefault("node_id", fresh_name("n"))
        value = task_json(step, *arguments, results_topic=self.topics.attempt_results, **fields)
        self.put(self.topics.tasks("default"), value, partition)

    def put(self, topic: str, value: bytes, partition: int = 0, key: bytes = b"run-1") -> None:
        self._producer.produce(topic, value, key, partition, headers=[("ductor-wire", b"1")])
        assert self._producer.flush(10) == 0

    def reports(self, kind: str = "attempt.finished") -> list[dict[str, Any]]:
        """All that was reported so far."""
        while (message := self._reader.poll(0.05)) is not None:
            if message.error() is None:
                self._seen.append(msgspec.json.decode(message.value() or b""))
        return [report for report in self._seen if report["type"] == kind]

    def outputs(self) -> list[Any]:
        return [report.get("output") for report in self.reports()]

    def committed(self, partition: int = 0) -> tuple[int, list[tuple[int, int]]]:
        """The group's offset and the runs in its metadata."""
        group = self.topics.worker_group("default")
        consumer = Consumer({"bootstrap.servers": self.bootstrap, "group.id": group})
        try:
            (at,) = consumer.committed([TopicPartition(self.topics.tasks("default"), partition)], 10)
        finally:
            consumer.close()
        return at.offset, decode_runs(at.offset, at.metadata or "")

    def close(self) -> None:
        for child in self.children:
            if child.poll() is None:
                child.kill()
            child.wait(10)
        self._reader.close()
        self._producer.flush(5)


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
