"""What the broker did not take: permanent refusals become events, others wait as rows (protocol 12)."""

from __future__ import annotations

import math
from collections.abc import Container, Mapping
from typing import Final, NamedTuple

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

INPUT_TOO_LARGE: Final = "input_too_large"
"""``code`` of an attempt whose task no broker takes: the one that is beside those of the wire contract, which workers say."""


_RARELY_MS = 30_000
"""Longest delay before a record is tried again whose topic has refused all for long: each try takes it out of the inbox."""

_MENDED_S = 2 * _RARELY_MS / 1000
"""A topic that has refused nothing for so long had been mended."""


class Refusal(NamedTuple):
    """The last time (monotonic) that a topic refused a record, why, and since when it does."""

    at: float
    error: str
    since: float


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
        self.refusing: dict[str, Refusal] = {}
        """Topics that have refused a record that may be taken later."""
        self._last: dict[str, Refusal] = {}
        self._looked_at = -math.inf

    def take(self, work: Work, owned: Mapping[int, Owned], dispatcher: Dispatcher) -> None:
        """The rows of these records count as confirmed in the very commit that this goes into."""
        for partition, failed in dispatcher.failures(owned):
            work.touched.add(partition)
            self._metrics.undeliverable["yes" if failed.permanent else "no"].inc()
            if failed.permanent:
                self._refused(work, partition, failed)
            else:
                self._note(failed.record.topic, failed.error)
                work.inbox.append(self._row_for(owned[partition], failed.record))

    def hold(
        self, owned: Owned, records: list[Outgoing], there: Container[str]
    ) -> tuple[list[Outgoing], list[InboxRow]]:
        """Records to produce now, and rows for those of topics that are not there, or have just refused something.

        On their way they would hold back all others (protocol 12).
        """
        for topic in dict.fromkeys(record.topic for record in records):
            if topic not in there:
                self._note(topic, "there is no such topic")
            elif topic in self.refusing and self._clock.monotonic() - self.refusing[topic].at >= self._pause_s:
                del self.refusing[topic]  # it is tried again
        held = [record for record in records if record.topic in self.refusing]
        if not held:
            return records, []
        return [r for r in records if r.topic not in self.refusing], [self._row_for(owned, record) for record in held]

    @property
    def _pause_s(self) -> float:
        return self._config.deliver_again_ms / 1000

    def _note(self, topic: str, error: str) -> None:
        now = self._clock.monotonic()
        if topic not in self.refusing:
            _log.error("topic refuses records: they wait as rows", topic=topic, error=error)
        last = self._last.get(topic)
        since = last.since if last is not None and now - last.at < _MENDED_S else now
        self.refusing[topic] = self._last[topic] = Refusal(now, error, since)
        if now - self._looked_at >= self._pause_s:
            self._looked_at = now
            self._log.look_again()

    def _row_for(self, owned: Owned, record: Outgoing) -> InboxRow:
        """A record that cannot be produced now, as a row that is tried again after a while."""
        self._number += 1
        source = f"produce/{owned.partition}/{owned.epoch}/{self._number}"
        last = self._last[record.topic]
        # The more rarely the longer it lasts: a hundred thousand tasks of one queue must not keep others from the inbox.
        delay_ms = max(self._config.deliver_again_ms, min(_RARELY_MS, round((last.at - last.since) * 100)))
        return InboxRow(owned.partition, source, "produce", encode_outgoing(record), self._clock.now() + delay_ms)

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
    failure = Failure(INPUT_TOO_LARGE, "Undeliverable", f"task not produced: {why}", retryable=False)
    return AttemptFinished(fence.execution, fence.node_id, fence.generation, "failed", None, failure)
