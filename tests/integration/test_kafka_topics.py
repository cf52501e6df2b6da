"""Creating and checking topics on real Kafka."""

from __future__ import annotations

import pytest
from confluent_kafka import admin as driver
from servers import KafkaServer
from support import fresh_name, until

from ductor_stream.errors import LogUnavailable, TopicsNotReady
from ductor_stream.kafka.topics import (
    AdminConfig,
    TopicPlan,
    check_topics,
    cluster_id,
    create_topics,
    delete_topics,
    plan,
)
from ductor_stream.protocol.topics import Topics


@pytest.fixture
def config(kafka: KafkaServer) -> AdminConfig:
    return AdminConfig(bootstrap=kafka.bootstrap, topics=Topics(fresh_name("topics")))


def test_topics_are_created_once_as_planned(config: AdminConfig) -> None:
    wanted = plan(config.topics, ["default"], partitions=3)
    assert create_topics(config, wanted) == sorted(each.name for each in wanted)
    assert create_topics(config, wanted) == []
    assert check_topics(config, wanted, recorded=3) == []
    admin, named = driver.AdminClient({"bootstrap.servers": config.bootstrap}), config.topics.tasks("default")
    resource = driver.ConfigResource(driver.ResourceType.TOPIC, named)  # type: ignore[attr-defined]
    found = admin.describe_configs([resource])[resource].result(10)
    planned = next(each for each in wanted if each.name == config.topics.tasks("default"))
    assert {name: found[name].value for name in planned.config} == planned.config


def test_a_topic_that_the_broker_refuses_is_named(config: AdminConfig) -> None:
    refused = TopicPlan(config.topics.run_events, 1, {"cleanup.policy": "delete"}, replicas=7)
    with pytest.raises(TopicsNotReady, match=config.topics.run_events):
        create_topics(config, [refused])


def test_deleting_passes_over_what_is_not_there(config: AdminConfig) -> None:
    create_topics(config, plan(config.topics))
    delete_topics(config, [config.topics.wakeups, "ductor.no-such.topic"])
    until(lambda: [each.topic for each in check_topics(config, plan(config.topics))] == [config.topics.wakeups])


def test_the_cluster_has_an_id(config: AdminConfig) -> None:
    assert cluster_id(config)
    assert cluster_id(config) == cluster_id(config)


def test_without_a_broker_administration_says_so() -> None:
    config = AdminConfig(bootstrap="127.0.0.1:1", topics=Topics("nowhere"), timeout=0.5)
    with pytest.raises(LogUnavailable):
        cluster_id(config)
    with pytest.raises(LogUnavailable):
        check_topics(config, plan(config.topics))
    with pytest.raises(LogUnavailable):
        create_topics(config, plan(config.topics))
    with pytest.raises(LogUnavailable):
        delete_topics(config, ["x"])
