"""For how long a namespace's topics keep what may begin or advance a run."""

from __future__ import annotations

from confluent_kafka import KafkaException

from ductor_stream.errors import LogUnavailable, TopicsNotReady
from ductor_stream.kafka.inspection import open_admin, text_of, topic_configs
from ductor_stream.kafka.topics import AdminConfig

FOREVER = -1


def retentions(config: AdminConfig) -> dict[str, int]:
    """``retention.ms`` of the inbound and task topics, by name; ``FOREVER`` where nothing is ever deleted.

    Raises LogUnavailable, and TopicsNotReady where the broker does not tell.
    """
    admin = open_admin(config)
    try:
        there = admin.list_topics(timeout=config.timeout).topics
        names = [n for n in there if n in config.topics.inbound_names or config.topics.queue_of(n) is not None]
        told = topic_configs(admin, names, config)
    except (KafkaException, TimeoutError) as error:
        raise LogUnavailable(f"Kafka does not answer: {text_of(error)}") from error
    silent = sorted(set(config.topics.inbound_names) - set(names)) + [n for n in names if "retention.ms" not in told[n]]
    if silent:
        raise TopicsNotReady(
            f"Kafka does not tell how long it keeps the records of {', '.join(silent)}: the topics have to be there, and "
            "DESCRIBE and DESCRIBE_CONFIGS on them to be allowed"
        )
    return {name: _kept(told[name]) for name in names}


def _kept(topic: dict[str, str]) -> int:
    deleted = "delete" in topic.get("cleanup.policy", "delete")
    return int(topic["retention.ms"]) if deleted else FOREVER
