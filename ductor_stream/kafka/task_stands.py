"""Where the task topics stand: what is kept of them, and how far their workers have got. Asked without waiting."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable, Mapping
from typing import Any

from confluent_kafka import Consumer, KafkaException, TopicPartition, admin

from ductor_stream.errors import DuctorError
from ductor_stream.kafka.offsets import offset_in
from ductor_stream.ports import UNREAD, TaskPlace, TaskStand
from ductor_stream.protocol.topics import Topics

_Spec: Any = admin.OffsetSpec  # type: ignore[attr-defined]  # exported at run time, not in the driver's stubs

Answer = Callable[[], Mapping[TaskPlace, TaskStand] | None]
"""Gives what was found; None while the broker has not answered. Places of which it says nothing are left out."""


class GroupOffsets:
    """What the workers' groups have committed, asked by consumers that never join them, all in one thread of their own.

    Not by the admin client: its request for a group's offsets ends the whole process when the broker goes away
    meanwhile (librdkafka 2.16: assertion ``eonce->refcnt > 0``).
    """

    def __init__(self, make: Callable[[str], Consumer]) -> None:
        """``make`` builds a consumer that names a group."""
        self._make = make
        self._questions: queue.SimpleQueue[_Question | None] = queue.SimpleQueue()
        self._closed = False
        threading.Thread(target=self._serve, name="kafka-group-offsets", daemon=True).start()

    def ask(
        self, places: Mapping[str, list[TopicPartition]], timeout: float
    ) -> Callable[[], dict[TaskPlace, int] | None]:
        """The committed offsets of these places by group, None until all groups were asked. Raises nothing."""
        question = _Question(places, timeout)
        self._questions.put(question)
        return lambda: question.found if question.answered else None

    def close(self) -> None:
        """Let go of the consumers once the question under way is answered. Does not wait for that."""
        self._closed = True
        self._questions.put(None)

    def _serve(self) -> None:
        readers: dict[str, Consumer] = {}
        while (question := self._questions.get()) is not None:
            for group, wanted in question.places.items():
                if self._closed:
                    break
                with contextlib.suppress(KafkaException, DuctorError):
                    reader = readers.get(group) or readers.setdefault(group, self._make(group))
                    for each in reader.committed(wanted, question.timeout):
                        question.found[each.topic, each.partition] = max(UNREAD, each.offset)
            question.answered = True
        for reader in readers.values():
            with contextlib.suppress(KafkaException):
                reader.close()


class _Question:
    def __init__(self, places: Mapping[str, list[TopicPartition]], timeout: float) -> None:
        self.places, self.timeout = places, timeout
        self.found: dict[TaskPlace, int] = {}
        self.answered = False


def ask_stands(
    client: admin.AdminClient, groups: GroupOffsets, topics: Topics, counts: Mapping[str, int], timeout: float
) -> Answer:
    """Ask for the task topics among ``counts`` (partition counts by full name). Does not wait, raises nothing."""
    queues = {name: each for name in counts if (each := topics.queue_of(name)) is not None}
    places = [TopicPartition(name, number) for name in queues for number in range(counts[name])]
    if not places:
        return dict
    try:
        starts = client.list_offsets(dict.fromkeys(places, _Spec.earliest()), request_timeout=timeout)
        ends = client.list_offsets(dict.fromkeys(places, _Spec.latest()), request_timeout=timeout)
    except KafkaException:
        return dict
    by_group = {topics.worker_group(each): [p for p in places if p.topic == name] for name, each in queues.items()}
    known = groups.ask(by_group, timeout)

    def answer() -> Mapping[TaskPlace, TaskStand] | None:
        committed = known()
        if committed is None or not all(future.done() for future in (*starts.values(), *ends.values())):
            return None
        found: dict[TaskPlace, TaskStand] = {}
        for key in places:
            with contextlib.suppress(KafkaException, TimeoutError):
                start, end = offset_in(starts[key].result()), offset_in(ends[key].result())
                found[key.topic, key.partition] = TaskStand(
                    start, end, committed.get((key.topic, key.partition), UNREAD)
                )
        return found

    return answer
