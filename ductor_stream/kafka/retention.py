"""For how long a namespace's topics keep what may begin or advance a run."""

from __future__ import annotations

from collections.abc import Sequence

from confluent_kafka import KafkaException

from ductor_stream.errors import LogUnavailable, TopicsNotReady
from ductor_stream.kafka.inspection import topic_configs
from ductor_stream.kafka.options import open_admin, text_of
from ductor_stream.kafka.topics import AdminConfig

FOREVER = -1


def retentions(config: AdminConfig) -> dict[str, int]:
    """For how long the inbound and task topics keep a record (ms), by name; ``FOREVER`` where nothing is ever deleted.

    Kafka deletes whole segments: the first record of one outlives ``retention.ms`` by the time that the segment spans. Of
    inbound topics that is counted, since what is read again there begins a run; of task topics a worker that reads
    such an old record sends a result for a run that is not there, which is late. Raises LogUnavailable, and TopicsNotReady where the broker does not tell.
    """
    inbound = config.topics.inbound_names
    told = _told(config, inbound, queues=True)
    return {name: _kept(topic, inbound=name in inbound) for name, topic in told.items()}


def letters_kept(config: AdminConfig) -> int:
    """For how long a dead letter can be read (ms), at least; ``FOREVER``. Raises LogUnavailable, TopicsNotReady."""
    name = config.topics.dead_letters
    return _kept(_told(config, (name,), queues=False)[name], inbound=True)


def _told(config: AdminConfig, needed: Sequence[str], *, queues: bool) -> dict[str, dict[str, str]]:
    """The configuration of these topics, and of the task topics that there are."""
    admin = open_admin(config.bootstrap, config.options)
    try:
        there = admin.list_topics(timeout=config.timeout).topics
        names = [n for n in there if n in needed or (queues and config.topics.queue_of(n) is not None)]
        told = topic_configs(admin, names, config)
    except (KafkaException, TimeoutError) as error:
        raise LogUnavailable(f"Kafka does not answer: {text_of(error)}") from error
    silent = sorted(set(needed) - set(names)) + [n for n in names if "retention.ms" not in told[n]]
    if silent:
        raise TopicsNotReady(
            f"Kafka does not tell how long it keeps the records of {', '.join(silent)}: the topics have to be there, and "
            "DESCRIBE and DESCRIBE_CONFIGS on them to be allowed"
        )
    return told


def _kept(topic: dict[str, str], *, inbound: bool) -> int:
    keep = int(topic["retention.ms"]) if "delete" in topic.get("cleanup.policy", "delete") else FOREVER
    return keep + int(topic.get("segment.ms", "0")) if inbound and keep != FOREVER else keep
