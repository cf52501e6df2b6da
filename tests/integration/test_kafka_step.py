"""Kafka steps against a real broker: what is published, and what is said of records that are not taken."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Consumer, Message, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from rig_worker import quiet
from support import fresh_name, until
from worker_rigs import bench

from ductor_stream import App, KafkaRecord
from ductor_stream.config import Settings
from ductor_stream.connectors.binding import runnable_steps

if TYPE_CHECKING:
    from servers import KafkaServer


@dataclass
class Shipped:
    order: str
    weight: float
    big: str = ""


@pytest.fixture
def topic(kafka: KafkaServer) -> Iterator[str]:
    """A topic with two partitions that takes records of at most 10,000 bytes."""
    name, admin = fresh_name("shipped"), AdminClient({"bootstrap.servers": kafka.bootstrap})
    admin.create_topics([NewTopic(name, 2, 1, config={"max.message.bytes": "10000"})])[name].result(30)
    yield name
    admin.delete_topics([name])[name].result(30)


def published(kafka: KafkaServer, topic: str) -> list[Message]:
    consumer = Consumer({"bootstrap.servers": kafka.bootstrap, "group.id": "unused"}, logger=quiet)
    found: list[Message] = []
    try:
        for partition in (0, 1):
            place = TopicPartition(topic, partition)
            start, end = consumer.get_watermark_offsets(place, 10)
            consumer.assign([TopicPartition(topic, partition, start)])
            while start < end:
                message = consumer.poll(10)
                assert message is not None and message.error() is None
                found.append(message)
                start = (message.offset() or 0) + 1
    finally:
        consumer.close()
    return found


def results(kafka: KafkaServer, record: KafkaRecord, *inputs: Any, **options: Any) -> list[dict[str, Any]]:
    """One attempt for each input."""
    app = App("t")
    app.kafka_step("publish", record, input=Shipped)
    settings = Settings(kafka_bootstrap=kafka.bootstrap, kafka=options)
    with bench(SimpleNamespace(steps=runnable_steps(app, settings)), slots=64) as b:  # type: ignore[arg-type]
        told = [b.run("publish", one, run_id=f"run-{n}") for n, one in enumerate(inputs)]
        until(lambda: all(each.result for each in told), within_ms=60_000, what="the results")
    return [each.result or {} for each in told]


def test_a_record_has_key_headers_value_and_the_idempotency_key(kafka: KafkaServer, topic: str) -> None:
    record = KafkaRecord(topic=topic, key="order-{order}", headers={"weight": "{weight} kg"})
    done = results(kafka, record, *({"order": f"é{n}", "weight": n + 0.5} for n in range(50)))
    assert {one["outcome"] for one in done} == {"completed"}
    found = {message.key().decode(): message for message in published(kafka, topic)}
    assert set(found) == {f"order-é{n}" for n in range(50)}
    one = found["order-é7"]
    assert json.loads(one.value()) == {"order": "é7", "weight": 7.5, "big": ""}
    assert one.headers() == [("weight", b"7.5 kg"), ("idempotency-key", b"t/run-7/1/1")]
    assert len({message.partition() for message in found.values()}) == 2


def test_without_a_key_it_is_the_run_and_a_field_may_be_the_value(kafka: KafkaServer, topic: str) -> None:
    results(kafka, KafkaRecord(topic=topic, value="weight"), {"order": "a", "weight": 1.5})
    [message] = published(kafka, topic)
    assert (message.key(), message.value()) == (b"run-0", b"1.5")


def test_a_record_that_is_too_large_is_refused_for_good(kafka: KafkaServer, topic: str) -> None:
    [failed, fine] = results(
        kafka, KafkaRecord(topic=topic), {"order": "a", "weight": 1, "big": "x" * 20_000}, {"order": "b", "weight": 1}
    )
    assert (failed["error"]["type"], failed["error"]["retryable"]) == ("KafkaRefused", False)
    assert fine["outcome"] == "completed"


def test_a_broker_that_is_away_is_worth_another_try(kafka: KafkaServer) -> None:
    options = {"message.timeout.ms": "500"}
    away = SimpleNamespace(bootstrap="127.0.0.1:1")
    [failed] = results(away, KafkaRecord(topic="x"), {"order": "a", "weight": 1}, **options)  # type: ignore[arg-type]
    assert (failed["error"]["type"], failed["error"]["retryable"]) == ("KafkaUndelivered", True)
    assert "topic x: " in failed["error"]["message"]
