"""Where the task topics stand: what is kept of them, and how far their workers have got. Asked without waiting."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Mapping
from typing import Any

from confluent_kafka import Consumer, KafkaException, TopicPartition, admin

from ductor_stream.ports import UNREAD, TaskPlace, TaskStand
from ductor_stream.protocol.topics import Topics

_Spec: Any = admin.OffsetSpec  # type: ignore[attr-defined]  # exported at run time, not in the driver's stubs

Answer = Callable[[], Mapping[TaskPlace, TaskStand] | None]
"""Gives what was found; None while the broker has not answered. Places of which it says nothing are left out."""


class GroupOffsets:
    """What the workers' groups have committed, asked in a thread by consumers that never join them.

    Not by the admin client: its request for a group's offsets ends the whole process when the broker goes away
    meanwhile (librdkafka 2.16: assertion ``eonce->refcnt > 0``).
    """

    def __init__(self, make: Callable[[str], Consumer]) -> None:
        """``make`` builds a consumer that names a group."""
        self._make = make
        self._readers: dict[str, Consumer] = {}

    def ask(
        self, places: Mapping[str, list[TopicPartition]], timeout: float
    ) -> Callable[[], dict[TaskPlace, int] | None]:
        """The committed offsets of these places by group, None until all groups were asked. Raises nothing."""
        found: dict[TaskPlace, int] = {}

        def read() -> None:
            for group, wanted in places.items():
                with contextlib.suppress(KafkaException, RuntimeError):
                    reader = self._readers.get(group) or self._readers.setdefault(group, self._make(group))
                    for each in reader.committed(wanted, timeout):
                        found[each.topic, each.partition] = max(UNREAD, each.offset)

        thread = threading.Thread(target=read, name="kafka-group-offsets", daemon=True)
        thread.start()
        return lambda: None if thread.is_alive() else found

    def close(self) -> None:
        """Let go of the consumers; a question under way finds nothing."""
        for reader in self._readers.values():
            with contextlib.suppress(KafkaException, RuntimeError):
                reader.close()


def ask_stands(
    client: admin.AdminClient, groups: GroupOffsets, topics: Topics, counts: Mapping[str, int], timeout: float
) -> Answer:
    """Ask for the task topics among ``counts`` (partition counts by full name). Does not wait, raises nothing."""
    queues = {name: queue for name in counts if (queue := topics.queue_of(name)) is not None}
    places = [TopicPartition(name, number) for name in queues for number in range(counts[name])]
    if not places:
        return dict
    try:
        starts = client.list_offsets(dict.fromkeys(places, _Spec.earliest()), request_timeout=timeout)
        ends = client.list_offsets(dict.fromkeys(places, _Spec.latest()), request_timeout=timeout)
    except KafkaException:
        return dict
    by_group = {topics.worker_group(queue): [p for p in places if p.topic == name] for name, queue in queues.items()}
    known = groups.ask(by_group, timeout)

    def answer() -> Mapping[TaskPlace, TaskStand] | None:
        committed = known()
        if committed is None or not all(future.done() for future in (*starts.values(), *ends.values())):
            return None
        return {
            place: TaskStand(starts[key].result().offset, ends[key].result().offset, committed.get(place, UNREAD))
            for key in places
            if starts[key].exception() is None and ends[key].exception() is None
            for place in [(key.topic, key.partition)]
        }

    return answer
