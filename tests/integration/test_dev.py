"""The embedded Kafka and Postgres: start, refuse, die with their parent, recover."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from support import fresh_name, until

from ductor_stream.dev import DevStack, EmbeddedKafka, running_pid
from ductor_stream.dev.process import command_line
from ductor_stream.errors import DevStackError

CHILD = Path(__file__).parents[1] / "dev_child.py"
QUIET = {"log_level": 0}


@pytest.fixture
def child(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A process with both servers on ``tmp_path/stack``, which is killed with -9 at the latest here."""
    process = subprocess.Popen(
        [sys.executable, str(CHILD), str(tmp_path / "stack")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


def told_by(process: subprocess.Popen[str]) -> dict[str, str | int]:
    assert process.stdout is not None
    return dict(json.loads(process.stdout.readline()))


def make_topic(bootstrap: str, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap, **QUIET})
    for made in admin.create_topics([NewTopic(topic, num_partitions=1, replication_factor=1)]).values():
        made.result(90)


def produce(bootstrap: str, topic: str, value: bytes) -> None:
    failures: list[object] = []
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, **QUIET})
    producer.produce(topic, key=b"k", value=value, on_delivery=lambda error, _record: failures.append(error))
    assert producer.flush(30) == 0
    assert failures == [None]


def consume_one(bootstrap: str, topic: str) -> bytes:
    settings = {"bootstrap.servers": bootstrap, "group.id": fresh_name("g"), "auto.offset.reset": "earliest"}
    consumer = Consumer({**settings, **QUIET})
    try:
        consumer.subscribe([topic])
        record = until(lambda: consumer.poll(0.1), within_ms=30_000, what=f"a record of {topic}")
        assert record.error() is None
        return bytes(record.value())
    finally:
        consumer.close()


def test_a_record_goes_through_the_broker(own_kafka: EmbeddedKafka) -> None:
    make_topic(own_kafka.bootstrap, "orders")
    produce(own_kafka.bootstrap, "orders", b"one")
    assert consume_one(own_kafka.bootstrap, "orders") == b"one"


def test_no_topic_is_made_by_a_typo(own_kafka: EmbeddedKafka) -> None:
    admin = AdminClient({"bootstrap.servers": own_kafka.bootstrap, **QUIET})
    admin.list_topics("typo", timeout=10)
    assert "typo" not in admin.list_topics(timeout=10).topics


def test_records_survive_kill_and_the_port_stays(own_kafka: EmbeddedKafka) -> None:
    bootstrap, first_pid = own_kafka.bootstrap, own_kafka.pid
    make_topic(bootstrap, "orders")
    produce(bootstrap, "orders", b"kept")
    own_kafka.kill()
    assert own_kafka.pid is None
    own_kafka.restart()
    assert own_kafka.bootstrap == bootstrap
    assert own_kafka.pid != first_pid
    assert consume_one(bootstrap, "orders") == b"kept"


def test_a_second_start_is_refused_with_the_pid(own_kafka: EmbeddedKafka, tmp_path: Path) -> None:
    with pytest.raises(DevStackError, match=rf"in use by process {os.getpid()}"):
        EmbeddedKafka(tmp_path / "own-kafka").start()


def test_a_second_stack_is_refused_with_the_pid(child: subprocess.Popen[str], tmp_path: Path) -> None:
    told_by(child)
    assert running_pid(tmp_path / "stack") == child.pid
    with pytest.raises(DevStackError, match=rf"in use by process {child.pid}\b"):
        DevStack(tmp_path / "stack").start()


def test_kill_9_of_the_parent_leaves_no_server_and_the_next_start_recovers(
    child: subprocess.Popen[str], tmp_path: Path
) -> None:
    told = told_by(child)
    make_topic(str(told["bootstrap"]), "orders")
    produce(str(told["bootstrap"]), "orders", b"kept")
    with psycopg.connect(str(told["url"])) as connection:
        connection.execute("CREATE TABLE kept AS SELECT 7 AS n")
    assert "kafka.Kafka" in command_line(int(told["kafka"]))
    assert "postgres" in command_line(int(told["postgres"]))

    child.kill()
    child.wait()
    # At once, while the servers may still be on their way out: the start waits for them.
    stack = DevStack(tmp_path / "stack")
    stack.start()
    try:
        assert stack.kafka is not None
        assert stack.postgres is not None
        for name in ("kafka", "postgres"):
            until(lambda pid=int(told[name]): command_line(pid) == "", what=f"the end of {name}")
        assert (stack.kafka.bootstrap, stack.postgres.url) == (told["bootstrap"], told["url"])
        assert consume_one(stack.kafka.bootstrap, "orders") == b"kept"
        with psycopg.connect(stack.postgres.url) as connection:
            assert connection.execute("SELECT n FROM kept").fetchone() == (7,)
    finally:
        stack.stop()


def test_servers_end_by_themselves_after_kill_9_of_the_parent(child: subprocess.Popen[str]) -> None:
    told = told_by(child)
    child.kill()
    child.wait()
    for name in ("kafka", "postgres"):
        until(lambda pid=int(told[name]): command_line(pid) == "", within_ms=30_000, what=f"the end of {name}")


def test_ctrl_c_does_not_reach_the_servers(child: subprocess.Popen[str]) -> None:
    told = told_by(child)
    for name in ("kafka", "postgres"):
        assert os.getsid(int(told[name])) != os.getsid(child.pid)


def test_everything_killed_at_once_recovers(child: subprocess.Popen[str], tmp_path: Path) -> None:
    told = told_by(child)
    for pid in (child.pid, int(told["kafka"]), int(told["postgres"])):
        os.kill(pid, signal.SIGKILL)
    child.wait()
    stack = DevStack(tmp_path / "stack")
    stack.start()
    stack.stop()


def test_a_broker_that_refuses_its_configuration_says_why(tmp_path: Path) -> None:
    kafka = EmbeddedKafka(tmp_path / "k", extra={"log.retention.ms": "soon"})
    with pytest.raises(DevStackError) as failure:
        kafka.start()
    assert "soon" in str(failure.value)
    assert str(kafka.log) in str(failure.value) or "format.log" in str(failure.value)
    EmbeddedKafka(tmp_path / "k").stop()  # the folder was let go


def test_a_stack_whose_kafka_fails_stops_its_postgres(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stack = DevStack(tmp_path / "stack")
    assert stack.kafka is not None
    assert stack.postgres is not None

    def fail() -> None:
        raise DevStackError("no broker today")

    monkeypatch.setattr(stack.kafka, "start", fail)
    with pytest.raises(DevStackError, match="no broker today"):
        stack.start()
    assert stack.postgres.pid is None
    assert running_pid(tmp_path / "stack") is None


def test_paths_with_spaces_and_foreign_letters(tmp_path: Path) -> None:
    stack = DevStack(tmp_path / "mein Projekt, größer: 订单")
    stack.start()
    try:
        assert stack.kafka is not None
        assert stack.postgres is not None
        make_topic(stack.kafka.bootstrap, "orders")
        with psycopg.connect(stack.postgres.url) as connection:
            assert connection.execute("SELECT 1").fetchone() == (1,)
    finally:
        stack.stop()
