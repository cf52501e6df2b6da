"""Dead letters: what can never be applied is set aside with its reason and its original bytes."""

from __future__ import annotations

import structlog

from ductor_stream.coordinator.work import Work
from ductor_stream.errors import DataError
from ductor_stream.ports import Outgoing, Received
from ductor_stream.protocol.limits import MAX_RECORD_BYTES
from ductor_stream.protocol.outbound import DeadLetter, Encoder
from ductor_stream.protocol.topics import Topics
from ductor_stream.telemetry.metrics import Metrics

_log = structlog.get_logger(__name__)


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
            reference = f"{topic}/{received.partition}/{received.offset}"
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

    def add_outgoing(self, work: Work, partition: int, record: Outgoing, error: str) -> None:
        """Set aside a record of ours that no broker will ever take."""
        self._metrics.dead_letters["undeliverable"].inc()
        _log.error("record cannot be produced, ever", topic=record.topic, error=error, bytes=len(record.value))
        reference = f"undeliverable/{record.topic}/{record.key.hex()[:64]}/{len(work.payloads)}/{partition}"
        work.payloads.append((reference, record.value))
        letter = DeadLetter(record.topic, -1, -1, record.key, None, "undeliverable", error, reference)
        work.produce(partition, [self._encoder.dead_letter(letter)])
