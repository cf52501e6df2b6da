"""Kafka as a client needs it: a producer for requests, and ``run-lifecycle`` read without a group.

The topic is read from where it ended when the log was opened, so that nothing of the client's own starts is missed;
reading begins when somebody first waits. Implements ``client.ports.ClientLog``.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any

import msgspec
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from ductor_stream.errors import DataError, DuctorError, LogUnavailable, PayloadTooLarge, TopicsNotReady
from ductor_stream.kafka.offsets import PASSING, PASSING_SECONDS
from ductor_stream.kafka.options import client_options, open_client
from ductor_stream.ports import Outgoing
from ductor_stream.protocol.lifecycle import LifecycleEvent, decode_lifecycle
from ductor_stream.protocol.topics import Topics

logger = logging.getLogger("ductor_stream.kafka.client_log")

POLL_SECONDS = 0.2
"""How long the threads sleep in the driver at most; it wakes them when something comes."""

LOOK_SECONDS = 30.0
"""Between two looks for new partitions of ``run-lifecycle``."""

TAKEN_AT_ONCE = 500
PURGE_SECONDS = 10.0
"""How long a purged producer may take to report its records; it is a matter of milliseconds."""


class ClientLogConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What a ``KafkaClientLog`` needs to know."""

    bootstrap: str
    topics: Topics
    options: Mapping[str, Any] = {}
    """The user's librdkafka options (see ``kafka.options``)."""
    lifecycle: bool = True
    """Whether outcomes will be read here; without it ``follow`` cannot be called."""
    request_timeout: float = 10.0
    """Seconds that a question to the broker may take when the log is opened."""


class KafkaClientLog:
    """Sends and follows. Safe to use from any thread.

    Delivery: at least once, in order per run (idempotent, acks=all).
    """

    def __init__(self, config: ClientLogConfig) -> None:
        """Connect; note where ``run-lifecycle`` ends. Raises LogUnavailable, TopicsNotReady, InvalidConfig."""
        self._config = config
        self._closing = threading.Event()
        self._threads: list[threading.Thread] = []
        self._renewing = threading.Lock()
        self._fatal = False
        # A consumer asks about topics without creating them, as a producer would. It never joins its group.
        options = client_options("consumer", config.bootstrap, config.options, group_id="ductor-client")
        self._consumer = open_client(Consumer, options)
        try:
            self._partitions(config.topics.run_events)
            self._positions = self._ends() if config.lifecycle else {}
        except DuctorError:
            self._consumer.close()
            raise
        self._producer = self._make_producer()
        self._spawn("ductor-sent", self._report)

    def send(self, record: Outgoing) -> Future[None]:
        """Produce; the future is done when the broker has the record. Raises through it, see ``ClientLog``."""
        future: Future[None] = Future()
        # Once running it cannot be cancelled: whoever gave up waiting does not take the record back.
        future.set_running_or_notify_cancel()

        def heard(error: KafkaError | None, _: Message) -> None:
            if error is None:
                future.set_result(None)
            else:
                self._fatal = self._fatal or error.fatal()
                future.set_exception(_translated(error, record))

        if self._fatal:
            self._renew()
        headers: Any = record.headers
        try:
            self._producer.produce(record.topic, record.value, record.key, on_delivery=heard, headers=headers)
        except BufferError:
            future.set_exception(LogUnavailable("too many requests wait for the broker; it does not answer"))
        except KafkaException as error:
            self._fatal = self._fatal or error.args[0].fatal()
            future.set_exception(_translated(error.args[0], record))
        return future

    def follow(self, heard: Callable[[LifecycleEvent], None]) -> None:
        """Begin reading, in a thread; called once."""
        topic = self._config.topics.run_lifecycle
        self._consumer.assign([TopicPartition(topic, number, offset) for number, offset in self._positions.items()])
        self._spawn("ductor-lifecycle", lambda: self._read(heard))

    def close(self, timeout: float) -> None:
        """Wait for acknowledgements, at most ``timeout`` seconds; then stop the threads."""
        if left := self._producer.flush(timeout):
            logger.warning("%d request(s) were not acknowledged when the client was closed", left)
        self._closing.set()
        for thread in self._threads:
            thread.join()
        self._consumer.close()

    # -- in the threads ------------------------------------------------------------------------

    def _spawn(self, name: str, work: Callable[[], None]) -> None:
        thread = threading.Thread(target=work, name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _report(self) -> None:
        while not self._closing.is_set():
            self._producer.poll(POLL_SECONDS)

    def _read(self, heard: Callable[[LifecycleEvent], None]) -> None:
        look_at = time.monotonic() + LOOK_SECONDS
        while not self._closing.is_set():
            try:
                for message in self._consumer.consume(TAKEN_AT_ONCE, POLL_SECONDS):
                    self._take(message, heard)
            except Exception:
                # One event must not end the thread: everyone who waits would wait for ever.
                logger.exception("reading run-lifecycle stumbled")
            if time.monotonic() > look_at:
                self._add_partitions()
                look_at = time.monotonic() + LOOK_SECONDS

    def _take(self, message: Message, heard: Callable[[LifecycleEvent], None]) -> None:
        error = message.error()
        if error is not None:
            if error.code() == KafkaError._AUTO_OFFSET_RESET:
                self._restart(message.partition())
            logger.warning("run-lifecycle: %s", error.str())
            return
        try:
            event = decode_lifecycle(message.key(), message.value(), _headers(message))
        except DataError as problem:
            logger.warning("a record of run-lifecycle is no event: %s", problem)
            return
        heard(event)

    def _restart(self, partition: int | None) -> None:
        """The position is gone (retention, a re-created topic): go on at the earliest record that is left."""
        if partition is None:
            return
        place = TopicPartition(self._config.topics.run_lifecycle, partition)
        try:
            place.offset, _ = self._consumer.get_watermark_offsets(place, timeout=self._config.request_timeout)
            self._consumer.seek(place)
        except KafkaException as error:
            logger.warning("run-lifecycle: %s", error)

    def _add_partitions(self) -> None:
        try:
            found = self._partitions(self._config.topics.run_lifecycle)
        except DuctorError as error:
            logger.warning("%s", error)
            return
        new = [number for number in found if number not in self._positions]
        self._positions.update(dict.fromkeys(new, 0))
        if new:
            topic = self._config.topics.run_lifecycle
            self._consumer.incremental_assign([TopicPartition(topic, number, 0) for number in new])

    # -- questions to the broker -----------------------------------------------------------------

    def _partitions(self, name: str) -> list[int]:
        try:
            topic = self._consumer.list_topics(name, timeout=self._config.request_timeout).topics[name]
        except KafkaException as error:
            raise LogUnavailable(f"Kafka does not answer at {self._config.bootstrap}: {error.args[0].str()}") from error
        if topic.error is not None and topic.error.code() not in PASSING:
            raise TopicsNotReady(f"{name}: {topic.error.str()}; run `ductor-stream topics create`")
        return sorted(topic.partitions)

    def _ends(self) -> dict[int, int]:
        name = self._config.topics.run_lifecycle
        deadline = time.monotonic() + self._config.request_timeout
        while True:
            try:
                return {number: self._end(name, number) for number in self._partitions(name)}
            except KafkaException as error:
                # A topic that was just created has no leader for a moment.
                if error.args[0].code() not in PASSING or time.monotonic() > deadline:
                    raise LogUnavailable(f"Kafka does not tell where {name} ends: {error.args[0].str()}") from error
            self._closing.wait(PASSING_SECONDS)

    def _end(self, name: str, partition: int) -> int:
        place = TopicPartition(name, partition)
        _, end = self._consumer.get_watermark_offsets(place, timeout=self._config.request_timeout)
        return end

    # -- the producer ----------------------------------------------------------------------------

    def _make_producer(self) -> Producer:
        config = self._config
        return open_client(Producer, client_options("producer", config.bootstrap, config.options))

    def _renew(self) -> None:
        """After a fatal error nothing more leaves a producer: give back what it holds, and make another."""
        with self._renewing:
            if not self._fatal:
                return
            old, self._producer, self._fatal = self._producer, self._make_producer(), False
        old.purge()
        old.flush(PURGE_SECONDS)


def _headers(message: Message) -> list[tuple[str, bytes | None]]:
    found: Any = message.headers()
    return list(found or ())


def _translated(error: KafkaError, record: Outgoing) -> DuctorError:
    code = error.code()
    if code in (KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE):
        return PayloadTooLarge(f"a request of {len(record.value):,} bytes is too large for {record.topic}")
    if code in (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION):
        return TopicsNotReady(f"there is no topic {record.topic}; run `ductor-stream topics create`")
    return LogUnavailable(f"the broker did not acknowledge the request, it may have it all the same: {error.str()}")
