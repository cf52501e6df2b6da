"""Whether producers send requests to their runs' home partitions: told by a look at the newest records."""

from __future__ import annotations

import time
import uuid

import msgspec
from confluent_kafka import Consumer, KafkaException, TopicPartition

from ductor_stream.engine.ids import partition_of
from ductor_stream.errors import LogUnavailable
from ductor_stream.kafka.offsets import PASSING, PASSING_SECONDS
from ductor_stream.kafka.options import client_options, open_client
from ductor_stream.kafka.topics import AdminConfig

NEWEST = 50
"""Records of each partition that are looked at: one producer that partitions otherwise misses three homes in four."""


class HomeFacts(msgspec.Struct, frozen=True):
    """How many records with a key were looked at, and how many of them lie elsewhere than at home."""

    seen: int
    astray: int


def inspect_homes(config: AdminConfig, topic: str, run_partitions: int) -> HomeFacts:
    """Look at the newest records of a topic, without a group. Raises LogUnavailable."""
    group = f"ductor-doctor-{uuid.uuid4().hex}"  # never joined: a consumer must have a name
    options = client_options("consumer", config.bootstrap, config.options, group_id=group)
    consumer = open_client(Consumer, options)
    try:
        return _look(consumer, topic, run_partitions, config.timeout)
    except KafkaException as error:
        raise LogUnavailable(f"Kafka cannot be read: {error.args[0].str()}") from error
    finally:
        consumer.close()


def _look(consumer: Consumer, topic: str, run_partitions: int, timeout: float) -> HomeFacts:
    deadline = time.monotonic() + timeout
    left: dict[int, int] = {}
    starts: list[TopicPartition] = []
    for number in consumer.list_topics(topic, timeout=timeout).topics[topic].partitions:
        low, high = _bounds(consumer, TopicPartition(topic, number), deadline)
        if high > low:
            left[number] = high
            starts.append(TopicPartition(topic, number, max(low, high - NEWEST)))
    consumer.assign(starts)
    seen, astray = 0, 0
    while left and time.monotonic() < deadline:
        message = consumer.poll(0.5)
        if message is None or message.error() is not None:
            continue
        number, offset, key = message.partition(), message.offset(), message.key()
        assert number is not None and offset is not None
        if offset + 1 >= left.get(number, 0):
            left.pop(number, None)
        if key:
            seen += 1
            astray += partition_of(key.encode() if isinstance(key, str) else key, run_partitions) != number
    return HomeFacts(seen, astray)


def _bounds(consumer: Consumer, place: TopicPartition, deadline: float) -> tuple[int, int]:
    while True:
        try:
            return consumer.get_watermark_offsets(place, timeout=max(0.1, deadline - time.monotonic()))
        except KafkaException as error:
            if error.args[0].code() not in PASSING or time.monotonic() > deadline:
                raise
        time.sleep(PASSING_SECONDS)
