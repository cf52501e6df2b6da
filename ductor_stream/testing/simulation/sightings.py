"""What a world has seen of the product's rarer ways: a checker of them is worth as much as there is to see."""

from __future__ import annotations

from collections import Counter
from typing import Literal, get_args

from ductor_stream.coordinator.service import Coordinator
from ductor_stream.engine.events import Forked
from ductor_stream.ports import Batch
from ductor_stream.protocol.avro import SINGLE_OBJECT
from ductor_stream.protocol.lifecycle import LifecycleEvent
from ductor_stream.protocol.topics import Topics
from ductor_stream.testing.simulation.checks import Checker, records_of
from ductor_stream.testing.simulation.clients import is_to_transition
from ductor_stream.testing.simulation.memory_broker import Kept, Topic
from ductor_stream.testing.simulation.memory_database import Database

Sight = Literal[
    "lifecycle in Avro", "tasks in Avro", "results in Avro", "reset to a transition", "rest for bytes", "contended"
]
SIGHTS: tuple[str, ...] = get_args(Sight)


class Sightings(Checker):
    """Counts them, and finds nothing wrong."""

    def __init__(self, topics: Topics) -> None:
        self._topics = topics
        self.seen: Counter[str] = Counter()

    def landed(self, topic: Topic, partition: int, record: Kept) -> None:
        if (record.value or b"").startswith(SINGLE_OBJECT):
            self._saw_avro(topic.name)

    def _saw_avro(self, topic: str) -> None:
        if topic == self._topics.run_lifecycle:
            self._saw("lifecycle in Avro")
        elif topic == self._topics.attempt_results:
            self._saw("results in Avro")
        elif self._topics.queue_of(topic) is not None:
            self._saw("tasks in Avro")

    def heard(self, event: LifecycleEvent) -> None:
        if event.type == "run.contended":
            self._saw("contended")

    def committing(self, database: Database, batch: Batch, txid: int) -> None:
        for run in batch.runs:
            for record in records_of(run.entry):
                if isinstance(record.event, Forked) and is_to_transition(record.event.command_id):
                    self._saw("reset to a transition")

    def turned(self, coordinator: Coordinator) -> None:
        """A turn has ended well. Whether it rested, and for the bytes alone, since fewer rows are on their way than may be."""
        dispatcher, config = coordinator.dispatcher, coordinator.config
        if dispatcher.crowd >= 1 and dispatcher.unconfirmed() < config.unconfirmed_limit:
            self._saw("rest for bytes")

    def _saw(self, sight: Sight) -> None:
        self.seen[sight] += 1
