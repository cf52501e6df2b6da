"""Protocol 27 in the simulation: workers commit an offset only when the broker has its result, or knows who runs it."""

from __future__ import annotations

from collections.abc import Container, Mapping

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
        received = Received("attempt-results", partition, record.offset, record.key, record.value, record.headers)
        try:
            message = self._decoder.decode(received, topic.id)
        except DataError:
            return
        if isinstance(message, Beat):
            self._heard.add(Fence(message.run_id, message.execution, message.node_id, message.generation))
        elif isinstance(message, ForRun) and isinstance(message.event, AttemptFinished):
            event = message.event
            self._finished.add(Fence(message.run_id, event.execution, event.node_id, event.generation))

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
