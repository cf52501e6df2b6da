"""What the broker did not take: permanent refusals become events, others wait as rows (protocol 12)."""

from __future__ import annotations

from collections.abc import Mapping

import structlog

from ductor_stream.coordinator.config import CoordinatorConfig
from ductor_stream.coordinator.dispatch import Dispatcher
from ductor_stream.coordinator.letters import DeadLetters
from ductor_stream.coordinator.ownership import Owned
from ductor_stream.coordinator.work import Entry, Work
from ductor_stream.engine.events import AttemptFinished, Failure
from ductor_stream.errors import DataError
from ductor_stream.ports import Clock, InboxRow, Undeliverable
from ductor_stream.protocol.inbox import encode_outgoing
from ductor_stream.protocol.topics import Topics
from ductor_stream.protocol.worker import WorkerCodec
from ductor_stream.telemetry.metrics import Metrics

_log = structlog.get_logger(__name__)


class Undelivered:
    """Adds to a turn what became of records that could not be produced."""

    def __init__(
        self,
        config: CoordinatorConfig,
        topics: Topics,
        clock: Clock,
        codec: tuple[DeadLetters, WorkerCodec],
        metrics: Metrics,
    ) -> None:
        self._config, self._topics, self._clock = config, topics, clock
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
                self._later(work, owned[partition], failed)

    def _later(self, work: Work, owned: Owned, failed: Undeliverable) -> None:
        topic = failed.record.topic
        if topic not in self.missing:
            _log.error("topic refuses records: they wait as rows", topic=topic, error=failed.error)
        self.missing[topic] = self._clock.monotonic()
        self._number += 1
        source = f"produce/{owned.partition}/{owned.epoch}/{self._number}"
        not_before = self._clock.now() + self._config.deliver_again_ms
        body = encode_outgoing(failed.record)
        work.inbox.append(InboxRow(owned.partition, source, "produce", body, not_before))

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
        failure = Failure("input_too_large", "Undeliverable", f"task not produced: {failed.error}", retryable=False)
        event = AttemptFinished(fence.execution, fence.node_id, fence.generation, "failed", None, failure)
        work.entries.append(Entry(fence.run_id, partition, event))
