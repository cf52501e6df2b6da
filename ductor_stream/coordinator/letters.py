"""Dead letters: what can never be applied is set aside with its reason and its original bytes."""

from __future__ import annotations

import hashlib

from ductor_stream.coordinator.work import Work
from ductor_stream.errors import DataError
from ductor_stream.ports import Inbound, Outgoing, Received
from ductor_stream.protocol.limits import MAX_RECORD_BYTES
from ductor_stream.protocol.outbound import DeadLetter, Encoder
from ductor_stream.protocol.topics import Topics
from ductor_stream.telemetry.logs import get_logger
from ductor_stream.telemetry.metrics import Metrics

_log = get_logger(__name__)


class DeadLetters:
    """Adds dead letters to the work of a turn: they are produced after the commit, like everything else."""

    def __init__(self, topics: Topics, encoder: Encoder, metrics: Metrics) -> None:
        self._topics, self._encoder, self._metrics = topics, encoder, metrics

    def add(self, work: Work, partition: int, received: Received, error: DataError) -> None:
        """Set an inbound record aside, on behalf of an owned partition."""
        topic = self._topics.inbound(received.topic)
        self._metrics.dead_letters[error.reason].inc()
        _log.warning(
            "dead letter",
            reason=error.reason,
            error=str(error),
            topic=topic,
            partition=received.partition,
            offset=received.offset,
        )
        value, reference = received.value, None
        if value is not None and len(value) > MAX_RECORD_BYTES:
            # The place alone is not unique: a topic that was re-created has it again, a result of this process has none.
            place = f"{topic}/{received.partition}/{received.offset}"
            reference = f"{place}/{hashlib.sha256((received.key or b'') + value).hexdigest()}"
            work.payloads.append((reference, value))
            value = None
        letter = DeadLetter(
            topic,
            received.partition,
            received.offset,
            received.key,
            value,
            error.reason,
            str(error),
            reference,
            received.headers,
        )
        work.produce(partition, [self._encoder.dead_letter(letter)])

    def lost(self, work: Work, partition: int, short: Inbound, offsets: tuple[int, int]) -> None:
        """Records of an inbound topic are gone unread, from the first of the offsets up to but without the second.

        A second one that is not above the first: the topic is another one, or was cut.
        """
        topic, (start, end) = self._topics.inbound(short), offsets
        told = f"offsets {start} to {end - 1} were deleted before they were read"
        if end <= start:
            told = f"what stood unread from offset {start} on is lost: the topic was re-created or truncated"
        self._metrics.dead_letters["lost_unread"].inc()
        _log.error("records lost unread", topic=topic, partition=partition, from_offset=start, to_offset=end)
        letter = DeadLetter(topic, partition, start, None, None, "lost_unread", told)
        work.produce(partition, [self._encoder.dead_letter(letter)])

    def add_outgoing(self, work: Work, partition: int, record: Outgoing, error: str) -> None:
        """Set aside a record of ours that no broker will ever take."""
        self._metrics.dead_letters["undeliverable"].inc()
        _log.error("record cannot be produced, ever", topic=record.topic, error=error, bytes=len(record.value))
        reference = f"undeliverable/{record.topic}/{partition}/{hashlib.sha256(record.key + record.value).hexdigest()}"
        work.payloads.append((reference, record.value))
        letter = DeadLetter(record.topic, -1, -1, record.key, None, "undeliverable", error, reference)
        work.produce(partition, [self._encoder.dead_letter(letter)])
