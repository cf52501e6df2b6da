"""Where the task topics stand: what is kept of them, and how far their workers have got. Asked without waiting."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from confluent_kafka import ConsumerGroupTopicPartitions, KafkaException, TopicPartition, admin

from ductor_stream.ports import UNREAD, TaskPlace, TaskStand
from ductor_stream.protocol.topics import Topics

_Spec: Any = admin.OffsetSpec  # type: ignore[attr-defined]  # exported at run time, not in the driver's stubs

Answer = Callable[[], Mapping[TaskPlace, TaskStand] | None]
"""Gives what was found; None while the broker has not answered. Places of which it says nothing are left out."""


def ask_stands(client: admin.AdminClient, topics: Topics, counts: Mapping[str, int], timeout: float) -> Answer:
    """Ask for the task topics among ``counts`` (partition counts by full name). Does not wait, raises nothing."""
    queues = {name: queue for name in counts if (queue := topics.queue_of(name)) is not None}
    places = [TopicPartition(name, number) for name in queues for number in range(counts[name])]
    if not places:
        return dict
    try:
        starts = client.list_offsets(dict.fromkeys(places, _Spec.earliest()), request_timeout=timeout)
        ends = client.list_offsets(dict.fromkeys(places, _Spec.latest()), request_timeout=timeout)
        groups = [
            future
            for name, queue in queues.items()
            for future in client.list_consumer_group_offsets(
                [ConsumerGroupTopicPartitions(topics.worker_group(queue), [p for p in places if p.topic == name])],
                request_timeout=timeout,
            ).values()
        ]
    except KafkaException:
        return dict

    def answer() -> Mapping[TaskPlace, TaskStand] | None:
        if not all(future.done() for future in (*starts.values(), *ends.values(), *groups)):
            return None
        committed = {
            (each.topic, each.partition): max(UNREAD, each.offset)
            for future in groups
            if future.exception() is None
            for each in future.result().topic_partitions
        }
        return {
            place: TaskStand(starts[key].result().offset, ends[key].result().offset, committed.get(place, UNREAD))
            for key in places
            if starts[key].exception() is None and ends[key].exception() is None
            for place in [(key.topic, key.partition)]
        }

    return answer
