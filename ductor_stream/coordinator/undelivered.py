"""What the broker did not take: permanent refusals become events, others wait as rows (protocol 12)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ductor_stream.coordinator.config import CoordinatorConfig
from ductor_stream.coordinator.dispatch import Dispatcher
from ductor_stream.coordinator.letters import DeadLetters
from ductor_stream.coordinator.ownership import Owned
from ductor_stream.coordinator.work import Entry, Work
from ductor_stream.engine.events import AttemptFinished, Failure
from ductor_stream.engine.ids import Fence
from ductor_stream.errors import DataError
from ductor_stream.ports import Clock, EventLog, InboxRow, Outgoing, Undeliverable
from ductor_stream.protocol.inbox import encode_event, encode_outgoing
from ductor_stream.protocol.topics import Topics
from ductor_stream.protocol.worker import WorkerCodec
from ductor_stream.telemetry.logs import get_logger
from ductor_stream.telemetry.metrics import Metrics

_log = get_logger(__name__)


class Undelivered:
    """Adds to a turn what became of records that could not be produced."""

    def __init__(
        self,
        config: CoordinatorConfig,
        topics: Topics,
        ports: tuple[EventLog, Clock],
        codec: tuple[DeadLetters, WorkerCodec],
        metrics: Metrics,
    ) -> None:
        self._config, self._topics = config, topics
        self._log, self._clock = ports
        self._letters, self._tasks = codec
        self._metrics = metrics
        self._number = 0
        self.missing: dict[str, float] = {}
        """Topic -> when (monotonic) a record was last refused because the topic is gone or forbidden."""

    def take(self, work: Work, owned: Mapping[int, Owned], dispatcher: Dispatcher) -> None:
        """The rows of these records count as confirmed in the very commit that this goes into."""
        for partition, failed in dispatcher.failures(owned):
            work.touched.add(partition)
            self._metrics.undeliverable["yes" if failed.permanent else "no"].inc()
            if failed.permanent:
                self._refused(work, partition, failed)
            else:
                work.inbox.append(self.row_for(owned[partition], failed.record, failed.error))

    def found(self, topics: Iterable[str]) -> None:
        """These topics are there (again)."""
        if self.missing:
            for topic in topics:
                self.missing.pop(topic, None)

    def row_for(self, owned: Owned, record: Outgoing, error: str) -> InboxRow:
        """A record that cannot be produced now, as a row that is tried again after a while."""
        topic = record.topic
        if topic not in self.missing:
            _log.error("topic refuses records: they wait as rows", topic=topic, error=error)
        self.missing[topic] = self._clock.monotonic()
        self._log.look_again()
        self._number += 1
        source = f"produce/{owned.partition}/{owned.epoch}/{self._number}"
        not_before = self._clock.now() + self._config.deliver_again_ms
        return InboxRow(owned.partition, source, "produce", encode_outgoing(record), not_before)

    def _refused(self, work: Work, partition: int, failed: Undeliverable) -> None:
        record = failed.record
        if self._topics.queue_of(record.topic) is None:
            self._letters.add_outgoing(work, partition, record, failed.error)
            return
        try:
            fence = self._tasks.decode_task(record.key, record.value, record.headers).fence
        except DataError:
            self._letters.add_outgoing(work, partition, record, failed.error)
            return
        event = refused(fence, failed.error)
        # With a body of its own it can wait in the inbox like any other input: its outbox row is gone by then.
        work.entries.append(Entry(fence.run_id, partition, event, inbox_body=encode_event(fence.run_id, event)))


def refused(fence: Fence, why: str) -> AttemptFinished:
    """The end of an attempt whose task nobody can be sent."""
    failure = Failure("input_too_large", "Undeliverable", f"task not produced: {why}", retryable=False)
    return AttemptFinished(fence.execution, fence.node_id, fence.generation, "failed", None, failure)
