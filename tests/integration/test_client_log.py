"""The client's log on a real broker: requests go home, the lifecycle is followed, and what is wrong is told at once."""

from __future__ import annotations

import pytest
from confluent_kafka import Consumer, TopicPartition
from servers import KafkaServer
from support import free_port, fresh_name, until

from ductor_stream import App, SyncClient
from ductor_stream.config import Settings
from ductor_stream.engine.ids import partition_of
from ductor_stream.errors import InvalidConfig, LogUnavailable, PayloadTooLarge, TopicsNotReady
from ductor_stream.kafka.client_log import ClientLogConfig, KafkaClientLog
from ductor_stream.kafka.topics import create_topics
from ductor_stream.ports import Outgoing
from ductor_stream.protocol.lifecycle import LifecycleEvent
from ductor_stream.protocol.topics import Topics
from ductor_stream.wiring.topics import admin_config, planned

app = App("shop")


def settings_for(bootstrap: str) -> Settings:
    return Settings(kafka_bootstrap=bootstrap, namespace=fresh_name("shop"), partitions=4)


@pytest.fixture
def topics(kafka: KafkaServer) -> Topics:
    settings = settings_for(kafka.bootstrap)
    create_topics(admin_config(app, settings), planned(app, settings))
    return settings.topics(app.namespace)


def test_a_request_goes_to_its_runs_home(kafka: KafkaServer, topics: Topics) -> None:
    log = KafkaClientLog(ClientLogConfig(bootstrap=kafka.bootstrap, topics=topics, lifecycle=False))
    sent = [log.send(Outgoing(topics.run_events, f"run-{n}".encode(), b"{}", [("a", b"b")])) for n in range(40)]
    for future in sent:
        assert future.result(20) is None
    with pytest.raises(PayloadTooLarge):
        log.send(Outgoing(topics.run_events, b"r", b"x" * 2_000_000)).result(20)
    log.close(5)
    consumer = Consumer({"bootstrap.servers": kafka.bootstrap, "group.id": "reader"})
    consumer.assign([TopicPartition(topics.run_events, n, 0) for n in range(4)])
    found = until(lambda: consumer.consume(1, 0.5)) + consumer.consume(39, 10)
    consumer.close()
    assert {(m.key(), m.partition()) for m in found} == {
        (key, partition_of(key, 4)) for key in (f"run-{n}".encode() for n in range(40))
    }


def test_the_lifecycle_is_followed_from_when_the_log_was_opened(kafka: KafkaServer, topics: Topics) -> None:
    def say(log: KafkaClientLog, seq: int, value: bytes | None = None) -> None:
        data = b'{"run_id":"r","execution":1,"workflow":"w","version":"1","seq":%d,"record_version":1}' % seq
        kind = [("ce_type", b"ductor.run.started")]
        log.send(Outgoing(topics.run_lifecycle, b"r", value or data, kind)).result(20)

    log = KafkaClientLog(ClientLogConfig(bootstrap=kafka.bootstrap, topics=topics))
    say(log, 1)
    late = KafkaClientLog(ClientLogConfig(bootstrap=kafka.bootstrap, topics=topics))
    say(log, 2, b"no event")
    say(log, 3)
    heard: list[LifecycleEvent] = []

    def hear(event: LifecycleEvent) -> None:
        heard.append(event)
        raise ZeroDivisionError("whoever listens must not end the thread")

    late.follow(hear)
    until(lambda: len(heard) == 1)
    say(log, 4)
    until(lambda: len(heard) == 2)
    assert [event.seq for event in heard] == [3, 4]
    log.close(5)
    late.close(5)


def test_what_keeps_a_client_from_opening_is_told(kafka: KafkaServer) -> None:
    with pytest.raises(TopicsNotReady, match="topics create"):
        SyncClient(app, settings_for(kafka.bootstrap)).open()
    away = ClientLogConfig(bootstrap=f"127.0.0.1:{free_port()}", topics=Topics("shop"), request_timeout=0.5)
    with pytest.raises(LogUnavailable, match="Kafka does not answer at 127"):
        KafkaClientLog(away)
    with pytest.raises(InvalidConfig, match="where is Kafka"):
        SyncClient(app, Settings()).open()
