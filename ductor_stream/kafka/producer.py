"""The producer: hands records over, counts their acknowledgements, and tells once per call what was not taken.

Delivery: at least once, in order per partition (idempotent, acks=all). A record is reported as undeliverable when
the broker refused it or the client's ``message.timeout.ms`` passed; it may have landed all the same in the second
case. One thread uses this: callbacks run in it, from within ``serve`` and ``flush`` alone.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Producer

from ductor_stream.kafka.options import in_words, is_fatal
from ductor_stream.kafka.repeats import REPEATS
from ductor_stream.ports import Acknowledged, Outgoing, Undeliverable
from ductor_stream.protocol.topics import is_topic

logger = logging.getLogger("ductor_stream.kafka.producer")
logger.addFilter(REPEATS)  # what a client hears of its connections comes many times a second

KEY_DECIDES = -1
"""librdkafka's word for: the partitioner takes the partition from the key."""

FULL_QUEUE_SECONDS = 5.0
"""How long ``produce`` waits for room in the client's queue (a million records) before it gives a record back."""

PURGE_SECONDS = 10.0
"""How long a purged producer may take to report its records; it is a matter of milliseconds."""

PERMANENT = frozenset(
    {
        KafkaError.MSG_SIZE_TOO_LARGE,
        KafkaError.RECORD_LIST_TOO_LARGE,
        KafkaError.TOPIC_EXCEPTION,
        KafkaError._INVALID_ARG,
    }
)
"""Errors of a record that no later try can mend: too large, an illegal topic name.

Of a topic with an illegal name the client says so once; what is produced to it later is for an unknown topic. So
``illegal`` is asked first. A topic that is unknown, forbidden or without a leader is none of them (protocol 12), nor is
a time that the broker does not take (of a host whose clock is an hour ahead), for which the records beside it are
called invalid too.
"""


def illegal(topic: str) -> str:
    """What is wrong with the name of a topic that no Kafka can have, or ``""``."""
    return "" if is_topic(topic) else f"no topic can be named {topic[:80]!r}: use 1 to 249 of A-Z a-z 0-9 . _ -"


class _Call:
    """One call of ``produce``: how many of its records are still open, and which failed."""

    __slots__ = ("acknowledged", "failed", "open", "records")

    def __init__(self, records: Sequence[Outgoing], acknowledged: Acknowledged) -> None:
        self.records = records
        self.acknowledged = acknowledged
        self.open = len(records)
        self.failed: list[Undeliverable] = []


class RecordProducer:
    """An idempotent producer behind ``EventLog.produce``. ``make`` builds the client, and another after a fatal error.

    ``make`` is given the callback that hears the client's errors.
    """

    def __init__(self, make: Callable[[Callable[[KafkaError], None]], Producer]) -> None:
        self._make = make
        self._calls: set[_Call] = set()
        self._answered: deque[_Call] = deque()
        self._rerouted: deque[tuple[Outgoing, _Call]] = deque()
        self._fatal: KafkaError | None = None
        self._client = make(self._heard_error)

    def __len__(self) -> int:
        """Records that the broker has not answered for yet."""
        return sum(call.open for call in self._calls)

    def produce(self, records: Sequence[Outgoing], acknowledged: Acknowledged) -> None:
        """Queue records; ``acknowledged`` is called once from a later ``serve`` or ``flush``, never from here."""
        call = _Call(records, acknowledged)
        self._calls.add(call)
        if not records:
            self._finish(call)
        for record in records:
            self._queue(record, call, KEY_DECIDES if record.partition is None else record.partition)

    def serve(self, timeout: float = 0.0) -> None:
        """Take delivery reports, waiting at most ``timeout`` seconds for the first; call ``acknowledged`` of done calls."""
        self._client.poll(timeout)
        if self._fatal is not None:
            self._replace(self._fatal)
        while self._rerouted:
            record, call = self._rerouted.popleft()
            self._queue(record, call, KEY_DECIDES)
        while self._answered:
            done = self._answered.popleft()
            done.acknowledged(done.failed)

    def flush(self, timeout: float) -> int:
        """Wait at most ``timeout`` seconds until every record is answered for; returns how many are not."""
        deadline = time.monotonic() + timeout
        while True:
            self._client.flush(max(0.0, deadline - time.monotonic()))
            self.serve()
            if not self._calls or time.monotonic() >= deadline:
                return len(self)

    def close(self, timeout: float) -> None:
        """Flush for ``timeout`` seconds; what is open then is reported as not taken (it may still have landed)."""
        if self.flush(timeout):
            self._purge(KafkaError(KafkaError._DESTROY, "the producer was closed"))
            self.serve()

    # -- inside ------------------------------------------------------------------------------

    def _queue(self, record: Outgoing, call: _Call, partition: int) -> None:
        heard = partial(self._heard, call, record)
        headers: Any = record.headers
        deadline = 0.0
        if wrong := illegal(record.topic):
            self._failed(call, record, wrong, permanent=True)
            return
        while True:
            try:
                self._client.produce(
                    record.topic, record.value, record.key, partition, on_delivery=heard, headers=headers
                )
                return
            except BufferError:
                deadline = deadline or time.monotonic() + FULL_QUEUE_SECONDS
                if time.monotonic() > deadline:
                    self._failed(call, record, "the producer's queue is full", permanent=False)
                    return
                self._client.poll(0.05)
            except KafkaException as error:
                self._heard(call, record, error.args[0], None)
                return
            except (TypeError, ValueError, UnicodeError) as error:
                # The client could not even encode it: a topic with U+0000, a header that is not bytes.
                self._failed(call, record, str(error), permanent=True)
                return

    def _heard(self, call: _Call, record: Outgoing, error: KafkaError | None, _message: Any) -> None:
        """The broker's (or the client's) last word on one record."""
        if error is None:
            call.open -= 1
            if not call.open:
                self._finish(call)
            return
        if error.code() == KafkaError._UNKNOWN_PARTITION and record.partition is not None:
            # The topic has fewer partitions than when the record was decided: any partition is right (R12).
            moved = Outgoing(record.topic, record.key, record.value, record.headers, None)
            self._rerouted.append((moved, call))
            return
        if is_fatal(error):
            self._fatal = self._fatal or error
        self._failed(call, record, error.str(), permanent=error.code() in PERMANENT)

    def _failed(self, call: _Call, record: Outgoing, error: str, *, permanent: bool) -> None:
        call.failed.append(Undeliverable(record, error, permanent))
        call.open -= 1
        if not call.open:
            self._finish(call)

    def _finish(self, call: _Call) -> None:
        if call in self._calls:
            self._calls.discard(call)
            self._answered.append(call)

    def _heard_error(self, error: KafkaError) -> None:
        if is_fatal(error):
            self._fatal = self._fatal or error
        logger.log(logging.ERROR if is_fatal(error) else logging.WARNING, "producer: %s", in_words(error))

    def _replace(self, error: KafkaError) -> None:
        """After a fatal error nothing more leaves this client: give everything back and make another (protocol 12)."""
        logger.error("fatal producer error, making a new producer: %s", error.str())
        self._purge(error)
        self._client = self._make(self._heard_error)
        self._fatal = None

    def _purge(self, error: KafkaError) -> None:
        self._client.purge()
        self._client.flush(PURGE_SECONDS)
        while self._rerouted:
            record, call = self._rerouted.popleft()
            self._failed(call, record, error.str(), permanent=False)
        for call in list(self._calls):
            # Reports that never came: which records they were is not known, so all are given back (R7).
            call.failed = [Undeliverable(record, error.str(), False) for record in call.records]
            self._finish(call)
