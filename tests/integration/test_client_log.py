"""The client's log on a real broker: requests go home, the lifecycle is followed, and what is wrong is told at once."""

from __future__ import annotations

import threading

import pytest
from confluent_kafka import Consumer, TopicPartition
from servers import KafkaServer
from support import free_port, fresh_name, until
from wire_cases import FixedRegistry

from ductor_stream import App, SyncClient
from ductor_stream.config import Settings
from ductor_stream.engine.actions import EmitLifecycle
from ductor_stream.engine.ids import partition_of
from ductor_stream.errors import (
    InvalidConfig,
    LogUnavailable,
    PayloadTooLarge,
    TopicsNotReady,
    TransientError,
    UsageError,
)
from ductor_stream.kafka import client_log
from ductor_stream.kafka.client_log import ClientLogConfig, KafkaClientLog
from ductor_stream.kafka.topics import create_topics
from ductor_stream.ports import Outgoing
from ductor_stream.protocol.lifecycle import LifecycleEvent
from ductor_stream.protocol.outbound import Encoder
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


class Away(FixedRegistry):
    """A registry that cannot be reached at first."""

    def schema_text(self, schema_id: int) -> str | None:
        found = super().schema_text(schema_id)
        if self.asked <= 2:
            raise TransientError("connection refused")
        return found


def test_no_event_is_passed_over_while_the_schema_registry_is_away(kafka: KafkaServer, topics: Topics) -> None:
    registry = Away()
    log = KafkaClientLog(ClientLogConfig(bootstrap=kafka.bootstrap, topics=topics, registry=registry))
    encoder = Encoder(topics, format="registry", registry=registry)
    for seq in (1, 2):
        log.send(encoder.lifecycle("r", "w", "1", EmitLifecycle("run.paused", 1, seq, 0), 1)).result(20)
    heard: list[LifecycleEvent] = []
    log.follow(heard.append)
    until(lambda: len(heard) == 2)
    assert [event.seq for event in heard] == [1, 2]
    assert registry.asked == 3
    log.close(5)


class Hanging(FixedRegistry):
    """A registry that takes a question and does not answer."""

    def __init__(self) -> None:
        super().__init__()
        self.answers = threading.Event()

    def schema_text(self, schema_id: int) -> str | None:
        found = super().schema_text(schema_id)
        self.answers.wait()
        return found


def test_a_registry_that_hangs_does_not_keep_a_client_from_closing(
    kafka: KafkaServer, topics: Topics, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_log, "CLOSE_SECONDS", 0.1)
    registry, heard = Hanging(), list[LifecycleEvent]()
    log = KafkaClientLog(ClientLogConfig(bootstrap=kafka.bootstrap, topics=topics, registry=registry))
    encoder = Encoder(topics, format="registry", registry=registry)
    for seq in (1, 2):
        log.send(encoder.lifecycle("r", "w", "1", EmitLifecycle("run.paused", 1, seq, 0), 1)).result(20)
    log.follow(heard.append)
    until(lambda: registry.asked == 1)
    closing = threading.Thread(target=log.close, args=(5,), daemon=True)
    closing.start()
    try:
        until(lambda: not closing.is_alive(), what="a client that is closed")
        reading = [thread for thread in threading.enumerate() if thread.name == "ductor-lifecycle"]
    finally:
        registry.answers.set()
    until(lambda: not any(thread.is_alive() for thread in reading), what="the end of its thread")
    assert len(heard) <= 1, "what it had not taken yet is left"


def test_what_is_not_acknowledged_when_a_client_is_closed_is_answered(kafka: KafkaServer, topics: Topics) -> None:
    """Nobody waits for ever: neither for what was under way, nor for what comes after it."""
    options = {"linger.ms": "20000"}  # as slow as a broker that does not answer
    log = KafkaClientLog(ClientLogConfig(bootstrap=kafka.bootstrap, topics=topics, options=options))
    sent = log.send(Outgoing(topics.run_events, b"r", b"{}"))
    log.close(0.0)
    with pytest.raises(LogUnavailable, match="may have it all the same"):
        sent.result(20)
    with pytest.raises(UsageError, match="the client is closed"):
        log.send(Outgoing(topics.run_events, b"r", b"{}"))
    with pytest.raises(UsageError, match="the client is closed"):
        log.follow(lambda event: None)


def test_what_keeps_a_client_from_opening_is_told(kafka: KafkaServer) -> None:
    with pytest.raises(TopicsNotReady, match="topics create"):
        SyncClient(app, settings_for(kafka.bootstrap)).open()
    away = ClientLogConfig(bootstrap=f"127.0.0.1:{free_port()}", topics=Topics("shop"), request_timeout=0.5)
    with pytest.raises(LogUnavailable, match="Kafka does not answer at 127"):
        KafkaClientLog(away)
    with pytest.raises(InvalidConfig, match="where is Kafka"):
        SyncClient(app, Settings()).open()
