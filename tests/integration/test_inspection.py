"""What real servers tell ``doctor`` and ``runs show`` of themselves, and that what is broken is seen."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Literal
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest
from confluent_kafka import Consumer, Producer
from servers import KafkaServer, PostgresServer
from support import fresh_name, until

from ductor_stream.errors import LogUnavailable, StoreUnavailable, TopicsNotReady
from ductor_stream.kafka.homes import HomeFacts, inspect_homes
from ductor_stream.kafka.inspection import ClusterFacts, inspect_cluster, inspect_members, inspect_queues, measure_clock
from ductor_stream.kafka.topics import AdminConfig, create_topics, plan
from ductor_stream.protocol.topics import Topics
from ductor_stream.store.grants import apply_grants
from ductor_stream.store.inspection import inspect_postgres
from ductor_stream.store.migrate import migrate


@pytest.fixture
def config(kafka: KafkaServer) -> AdminConfig:
    return AdminConfig(bootstrap=kafka.bootstrap, topics=Topics(fresh_name("seen")))


# -- Kafka --------------------------------------------------------------------------------------------


def test_a_cluster_describes_itself_its_topics_and_groups(config: AdminConfig) -> None:
    create_topics(config, plan(config.topics, ["default"], partitions=3))
    group, events = config.topics.coordinator_group, config.topics.run_events

    def look() -> ClusterFacts:
        facts = inspect_cluster(config, [events, "ductor.no-such.topic"], [group])
        assert group in facts.groups, "a broker that has just started has no coordinator for groups yet"
        return facts

    facts = until(look, within_ms=60_000)
    assert facts.brokers == 1
    assert facts.cluster_id
    assert "consumer" in facts.broker_config["group.coordinator.rebalance.protocols"]
    assert list(facts.topics) == [events]
    topic = facts.topics[events]
    assert (topic.partitions, topic.replicas, topic.in_sync) == (3, 1, 1)
    assert topic.config["retention.ms"] == "604800000"
    assert topic.rights is not None
    assert {"read", "write", "describe"} <= topic.rights
    assert facts.groups[group].members == 0
    assert facts.groups[group].config["consumer.session.timeout.ms"]
    assert facts.denied == []


@contextmanager
def member(config: AdminConfig, protocol: Literal["classic", "consumer"]) -> Iterator[Consumer]:
    consumer = Consumer(
        {
            "bootstrap.servers": config.bootstrap,
            "group.id": config.topics.worker_group("q"),
            "group.protocol": protocol,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    with closing(consumer):
        consumer.subscribe([config.topics.tasks("q")])
        yield consumer


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_queues_consumers_and_waiting_tasks(config: AdminConfig, protocol: Literal["classic", "consumer"]) -> None:
    create_topics(config, plan(config.topics, ["q"], partitions=2))
    producer = Producer({"bootstrap.servers": config.bootstrap})
    for number in range(5):
        producer.produce(config.topics.tasks("q"), b"task", str(number))
    producer.flush(10)
    found = inspect_queues(config, ["q", "no-such-queue"])
    assert (list(found), found["q"].consumers, found["q"].waiting) == (["q"], 0, 5)
    with member(config, protocol) as consumer:
        first = until(lambda: consumer.poll(0.1), what="a task")
        consumer.commit(first, asynchronous=False)
        assert inspect_queues(config, ["q"])["q"].consumers == 1
        assert inspect_members(config, config.topics.worker_group("q")) == 1
        assert until(lambda: inspect_queues(config, ["q"])["q"].waiting) == 4
    assert until(lambda: inspect_queues(config, ["q"])["q"].consumers == 0, within_ms=20_000)


def test_records_that_lie_astray_are_counted(config: AdminConfig) -> None:
    create_topics(config, plan(config.topics, partitions=4))
    events = config.topics.run_events
    assert inspect_homes(config, events, 4) == HomeFacts(0, 0)
    for partitioner, astray in (("murmur2_random", 0), ("consistent_random", 1)):
        producer = Producer({"bootstrap.servers": config.bootstrap, "partitioner": partitioner})
        for number in range(40):
            producer.produce(events, b"x", f"run-{number}")
        producer.flush(10)
        found = inspect_homes(config, events, 4)
        assert found.seen == 40 * (1 + astray)
        assert (found.astray > 0) == bool(astray)


def test_the_brokers_clock_is_seen_and_nothing_is_left_behind(config: AdminConfig) -> None:
    name = f"ductor.{config.topics.namespace}.doctor"
    facts = measure_clock(config, name)
    assert abs(facts.ahead_ms) <= facts.error_ms + 1_000
    from ductor_stream.kafka.inspection import open_admin
    from ductor_stream.kafka.watch import list_names

    until(lambda: not list_names(open_admin(config.bootstrap, config.options), name, 5.0))
    with pytest.raises(TopicsNotReady, match="no topic could be made"):
        measure_clock(config, "no topic's name")


def test_a_broker_that_is_away_is_told() -> None:
    away = AdminConfig(bootstrap="127.0.0.1:1", topics=Topics("nowhere"), timeout=0.5)
    for ask in (
        lambda: inspect_cluster(away, ["x"], ["y"]),
        lambda: inspect_queues(away, ["q"]),
        lambda: inspect_members(away, "g"),
    ):
        with pytest.raises(LogUnavailable):
            ask()


# -- Postgres -----------------------------------------------------------------------------------------


def test_a_database_before_and_after_its_migration(database_url: str) -> None:
    before = inspect_postgres(database_url, "shop")
    assert list(before.due) == migrate(database_url, dry_run=True)
    assert (before.newer, before.partitions, list(before.missing_rights)) == (None, None, [])
    migrate(database_url)
    after = inspect_postgres(database_url, "shop")
    assert (list(after.due), after.standby, after.durable) == ([], False, True)
    assert (after.pooling, after.replicas, list(after.missing_rights)) == ("none", 0, [])
    assert after.version_number >= 140_000
    assert abs(after.clock_ahead_ms) <= after.clock_error_ms + 1_000


def test_the_namespaces_row_and_a_newer_schema_are_seen(database_url: str) -> None:
    migrate(database_url)
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute("insert into eec_namespace (name, partitions, cluster_id) values ('shop', 6, 'one')")
    found = inspect_postgres(database_url, "shop")
    assert (found.partitions, found.cluster_id) == (6, "one")
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute("insert into eec_schema (version, phase, name) values (9999, 'post', 'later')")
    assert "newer than this release" in (inspect_postgres(database_url, "shop").newer or "")


def test_a_role_that_may_not_write_is_seen(database_url: str) -> None:
    migrate(database_url)
    role = fresh_name("reader").replace("-", "_")
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute(f"create role {role} login password 'x'".encode())
        connection.execute(f"grant select on all tables in schema public to {role}".encode())
        connection.execute(f"grant insert, update, delete on eec_inbox to {role}".encode())
    try:
        parts = urlsplit(database_url)
        netloc = f"{role}:x@{parts.netloc.rpartition('@')[2]}"
        found = inspect_postgres(urlunsplit(parts._replace(netloc=netloc)), "shop")
        assert found.user == role
        assert "insert on eec_outbox" in found.missing_rights
        assert "delete on eec_workflow_run" not in found.missing_rights  # no coordinator does
        assert not [right for right in found.missing_rights if "eec_inbox" in right or "select" in right]
        apply_grants(database_url, {"coordinator": role})
        assert list(inspect_postgres(urlunsplit(parts._replace(netloc=netloc)), "shop").missing_rights) == []
    finally:
        with psycopg.connect(database_url, autocommit=True) as connection:
            connection.execute(f"drop owned by {role}".encode())
            connection.execute(f"drop role {role}".encode())


def test_a_postgres_that_is_away_is_told(postgres: PostgresServer) -> None:
    with pytest.raises(StoreUnavailable):
        inspect_postgres("postgresql://postgres@127.0.0.1:1/none", "shop")
