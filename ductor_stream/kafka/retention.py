"""For how long a namespace's topics keep what may begin or advance a run."""

from __future__ import annotations

from confluent_kafka import KafkaException

from ductor_stream.errors import LogUnavailable, TopicsNotReady
from ductor_stream.kafka.inspection import open_admin, text_of, topic_configs
from ductor_stream.kafka.topics import AdminConfig

FOREVER = -1


def retentions(config: AdminConfig) -> dict[str, int]:
    """For how long the inbound and task topics keep a record (ms), by name; ``FOREVER`` where nothing is ever deleted.

    Kafka deletes whole segments: the first record of one outlives ``retention.ms`` by the time that the segment spans. Of
    inbound topics that is counted, since what is read again there begins a run; of task topics a worker that reads
    such an old record sends a result for a run that is not there, which is late. Raises LogUnavailable, and TopicsNotReady where the broker does not tell.
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
    return {name: _kept(told[name], inbound=name in config.topics.inbound_names) for name in names}


def _kept(topic: dict[str, str], *, inbound: bool) -> int:
    keep = int(topic["retention.ms"]) if "delete" in topic.get("cleanup.policy", "delete") else FOREVER
    return keep + int(topic.get("segment.ms", "0")) if inbound and keep != FOREVER else keep
