"""Protocol 27 in the simulation: workers commit an offset only when the broker has its result, or knows who runs it."""

from __future__ import annotations

from collections.abc import Container, Mapping

import msgspec

from ductor_stream.engine.events import AttemptFinished
from ductor_stream.engine.ids import Fence
from ductor_stream.errors import DataError
from ductor_stream.ports import Received, TaskPosition
from ductor_stream.protocol.inbound import Beat, ForRun, InboundDecoder
from ductor_stream.protocol.topics import Topics
from ductor_stream.testing.simulation.checks import Checker
from ductor_stream.testing.simulation.memory_broker import Kept, Topic
from ductor_stream.testing.simulation.workers import task_of
from ductor_stream.worker.window import Window


class _Said(msgspec.Struct):
    """What a worker says of an attempt, as far as it matters here."""

    type: str
    run_id: str
    execution: int
    node_id: str
    generation: int


_said = msgspec.json.Decoder(_Said)


class R5TasksNotSwallowed(Checker):
    """A task counts as done when its result is in its topic, or when it goes on running and a heartbeat is."""

    rule = "R5"

    def __init__(self, topics: Topics) -> None:
        self._topics, self._decoder = topics, InboundDecoder(topics)
        self._finished: set[Fence] = set()
        self._heard: set[Fence] = set()
        self._accounted: set[tuple[str, int, int]] = set()

    def landed(self, topic: Topic, partition: int, record: Kept) -> None:
        if topic.name != self._topics.attempt_results:
            return
        try:
            said: _Said | None = _said.decode(record.value or b"")
        except msgspec.DecodeError:
            said = self._decoded(topic, partition, record)
        if said is not None:
            known = self._finished if said.type == "attempt.finished" else self._heard
            known.add(Fence(said.run_id, said.execution, said.node_id, said.generation))

    def _decoded(self, topic: Topic, partition: int, record: Kept) -> _Said | None:
        """What is no JSON: Avro, or nothing."""
        received = Received("attempt-results", partition, record.offset, record.key, record.value, record.headers)
        try:
            message = self._decoder.decode(received, topic.id)
        except DataError:
            return None
        if isinstance(message, Beat):
            return _Said("", message.run_id, message.execution, message.node_id, message.generation)
        event = message.event if isinstance(message, ForRun) else None
        if not isinstance(event, AttemptFinished) or not isinstance(message, ForRun):
            return None
        return _Said("attempt.finished", message.run_id, event.execution, event.node_id, event.generation)

    def committing_tasks(
        self, worker: str, topic: Topic, positions: Mapping[int, TaskPosition], running: Container[Fence]
    ) -> None:
        """A worker, which runs these attempts, is about to commit these positions."""
        for partition, position in positions.items():
            window = Window.opened(position.offset or 0, position.metadata)
            for record in topic.partitions[partition].records:
                key = (topic.id, partition, record.offset)
                if key in self._accounted or not window.is_done(record.offset):
                    continue
                task = task_of(record)
                if task is None:
                    self._accounted.add(key)
                    continue
                fence = Fence(task["run_id"], task["execution"], task["node_id"], task["generation"])
                if fence not in self._finished and fence not in self._heard:
                    raise self.broken(f"{worker} commits past {fence} in {topic.name}, of which nobody has heard")
                if fence not in self._finished and fence not in running:
                    raise self.broken(f"{worker} commits past {fence} in {topic.name}, whose end nobody has heard of")
                self._accounted.add(key)
