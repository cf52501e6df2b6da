"""A new broker's group coordinators are awake before the first member asks for them."""

from __future__ import annotations

from confluent_kafka.admin import AdminClient

from ductor_stream.dev.kafka import EmbeddedKafka
from ductor_stream.kafka.topics import AdminConfig
from ductor_stream.kafka.warming import wake_groups
from ductor_stream.protocol.topics import Topics


def test_groups_are_known_once_they_are_woken(own_kafka: EmbeddedKafka) -> None:
    topics = Topics("shop")
    groups = [topics.coordinator_group, topics.worker_group("default")]
    admin = AdminClient({"bootstrap.servers": own_kafka.bootstrap, "log_level": 0})
    assert "__consumer_offsets" not in admin.list_topics(timeout=10).topics
    wake_groups(AdminConfig(bootstrap=own_kafka.bootstrap, topics=topics), groups)
    # Each at the first question: a member whose question fails comes back after a second or three.
    answers = admin.describe_consumer_groups(groups, request_timeout=10)
    assert [answers[group].result(10).group_id for group in groups] == groups
    assert "__consumer_offsets" in admin.list_topics(timeout=10).topics
