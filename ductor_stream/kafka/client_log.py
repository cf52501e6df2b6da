"""Kafka as a client needs it: a producer for requests, and ``run-lifecycle`` read without a group.

The topic is read from where it ended when the log was opened, so that nothing of the client's own starts is missed;
reading begins when somebody first waits. Implements ``client.ports.ClientLog``.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from typing import Any

import msgspec
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from ductor_stream.errors import (
    DataError,
    DuctorError,
    LogUnavailable,
    PayloadTooLarge,
    TopicsNotReady,
    TransientError,
    UsageError,
)
from ductor_stream.kafka.bounded import CLOSE_SECONDS
from ductor_stream.kafka.offsets import PASSING, PASSING_SECONDS
from ductor_stream.kafka.options import HeardProducer, client_options, in_words, is_fatal, open_client
from ductor_stream.ports import Outgoing
from ductor_stream.protocol.lifecycle import LifecycleEvent, LifecycleReader
from ductor_stream.protocol.registry import SchemaRegistry
from ductor_stream.protocol.topics import Topics

logger = logging.getLogger("ductor_stream.kafka.client_log")

POLL_SECONDS = 0.2
"""How long the threads sleep in the driver at most; it wakes them when something comes."""

READ_AGAIN_SECONDS = 1.0
"""Before an event is read again whose schema could not be asked for."""

LOOK_SECONDS = 30.0
"""Between two looks for new partitions of ``run-lifecycle``."""

TAKEN_AT_ONCE = 500
PURGE_SECONDS = 10.0
"""How long a purged producer may take to report its records; it is a matter of milliseconds."""

_PURGED = frozenset({KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT})
"""How a producer gives back what it held when it was purged."""

_DENIED = frozenset({KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.CLUSTER_AUTHORIZATION_FAILED})
"""The second is for who may write to no topic at all: no idempotent producer begins."""


class ClientLogConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What a ``KafkaClientLog`` needs to know."""

    bootstrap: str
    topics: Topics
    options: Mapping[str, Any] = {}
    """The user's librdkafka options (see ``kafka.options``)."""
    lifecycle: bool = True
    """Whether outcomes will be read here; without it ``follow`` cannot be called."""
    registry: SchemaRegistry | None = None
    """For events in Confluent's format."""
    request_timeout: float = 10.0
    """Seconds that a question to the broker may take when the log is opened."""


class KafkaClientLog:
    """Sends and follows. Safe to use from any thread.

    Delivery: at least once, in order per run (idempotent, acks=all).
    """

    def __init__(self, config: ClientLogConfig) -> None:
        """Connect; note where ``run-lifecycle`` ends. Raises LogUnavailable, TopicsNotReady, InvalidConfig."""
        self._config = config
        self._reader = LifecycleReader(config.registry)
        self._closing = threading.Event()
        self._using = threading.Lock()  # held while it is used or closed: nothing begins on a client that ends
        self._threads: list[threading.Thread] = []
        self._renewing = threading.Lock()
        self._fatal: KafkaError | None = None
        self._ended_by: KafkaError | None = None
        self._purged: deque[tuple[Future[None], Outgoing, KafkaError]] = deque()
        self._number = 0  # of the producer: what a former one still says is no news
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
        """Produce; the future is done when the broker has the record. Raises through it, see ``ClientLog``.

        Raises UsageError after ``close``.
        """
        future: Future[None] = Future()
        # Once running it cannot be cancelled: whoever gave up waiting does not take the record back.
        future.set_running_or_notify_cancel()
        if self._fatal is not None:
            self._renew()
        number = self._number

        def heard(error: KafkaError | None, _: Message) -> None:
            if error is None:
                future.set_result(None)
                return
            self._note(error, number)
            if error.code() in _PURGED:
                # By a fatal error, which may be heard of a moment later.
                self._purged.append((future, record, error))
            else:
                future.set_exception(_translated(error, record))

        headers: Any = record.headers
        try:
            with self._in_use():
                self._producer.produce(record.topic, record.value, record.key, on_delivery=heard, headers=headers)
        except BufferError:
            future.set_exception(LogUnavailable("too many requests wait for the broker; it does not answer"))
        except KafkaException as error:
            self._note(error.args[0], number)
            future.set_exception(_translated(self._fatal or error.args[0], record))
        return future

    def follow(self, heard: Callable[[LifecycleEvent], None]) -> None:
        """Begin reading, in a thread; called once. Raises UsageError after ``close``."""
        topic = self._config.topics.run_lifecycle
        with self._in_use():
            self._consumer.assign([TopicPartition(topic, number, offset) for number, offset in self._positions.items()])
            self._spawn("ductor-lifecycle", lambda: self._read(heard))

    def close(self, timeout: float) -> None:
        """Wait for acknowledgements, at most ``timeout`` seconds; then stop the threads, in five seconds at most.

        What is not acknowledged by then is answered by a LogUnavailable: it may have landed all the same.
        """
        if left := self._producer.flush(timeout):
            logger.warning("%d request(s) were not acknowledged when the client was closed", left)
        with self._using:
            self._closing.set()
        until = time.monotonic() + CLOSE_SECONDS
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))
        self._producer.purge()
        self._producer.flush(PURGE_SECONDS)
        self._answer_purged()
        if stuck := [thread.name for thread in self._threads if thread.is_alive()]:
            # It may be asking a schema registry that hangs. The consumer is in no group: nobody waits for its end.
            logger.warning("given up when the client was closed: %s", ", ".join(stuck))
        else:
            self._consumer.close()

    @contextlib.contextmanager
    def _in_use(self) -> Iterator[None]:
        with self._using:
            if self._closing.is_set():
                raise UsageError("the client is closed")
            yield

    # -- in the threads ------------------------------------------------------------------------

    def _spawn(self, name: str, work: Callable[[], None]) -> None:
        thread = threading.Thread(target=work, name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _report(self) -> None:
        while not self._closing.is_set():
            try:
                self._producer.poll(POLL_SECONDS)
                if self._fatal is not None and len(self._producer):
                    self._give_back()
                if self._purged:
                    self._producer.poll(POLL_SECONDS)
                    self._answer_purged()
            except Exception:
                # Whatever comes out of the driver or a receiver: those who wait for other records must hear of them.
                logger.exception("hearing of what was sent stumbled")
                self._closing.wait(POLL_SECONDS)

    def _answer_purged(self) -> None:
        with contextlib.suppress(IndexError):  # the last one may be taken by two threads, when one is given up
            while self._purged:
                future, record, error = self._purged.popleft()
                future.set_exception(_translated(self._fatal or self._ended_by or error, record))

    def _give_back(self) -> None:
        """What a producer holds that met a fatal error would wait for ever. Without anything the next request renews it."""
        try:
            self._renew()
        except DuctorError as error:
            logger.warning("%s", error)
            self._closing.wait(POLL_SECONDS)

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
            event = self._decoded(message)
        except DataError as problem:
            logger.warning("a record of run-lifecycle is no event: %s", problem)
            return
        if event is not None:
            heard(event)

    def _decoded(self, message: Message) -> LifecycleEvent | None:
        """The event. While the schema registry is away nothing is passed over: somebody may wait for it. None at the end."""
        while not self._closing.is_set():
            try:
                return self._reader.decode(message.key(), message.value(), _headers(message))
            except TransientError as problem:
                logger.warning("run-lifecycle cannot be read for now: %s", problem)
                self._closing.wait(READ_AGAIN_SECONDS)
        return None

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
            create = "" if topic.error.code() in _DENIED else "; run `ductor-stream topics create`"
            raise TopicsNotReady(f"{name}: {in_words(topic.error)}{create}")
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
        self._number = number = self._number + 1

        def heard(error: KafkaError) -> None:
            self._note(error, number)

        options = client_options("producer", config.bootstrap, config.options)
        return open_client(HeardProducer, options | {"error_cb": heard})

    def _note(self, error: KafkaError, number: int) -> None:
        if is_fatal(error) and number == self._number:
            self._fatal = self._fatal or error

    def _renew(self) -> None:
        """After a fatal error nothing more leaves a producer: give back what it holds, and make another."""
        with self._renewing:
            if self._fatal is None:
                return
            made = self._make_producer()
            old, self._producer, self._ended_by, self._fatal = self._producer, made, self._fatal, None
        old.purge()
        old.flush(PURGE_SECONDS)


def _headers(message: Message) -> list[tuple[str, bytes | None]]:
    found: Any = message.headers()
    return list(found or ())


def _translated(error: KafkaError, record: Outgoing) -> DuctorError:
    code = error.code()
    if code in _DENIED:
        return TopicsNotReady(f"Kafka does not let us write to {record.topic}: {error.str()}")
    if code in (KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE):
        return PayloadTooLarge(f"a request of {len(record.value):,} bytes is too large for {record.topic}")
    if code in (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION):
        return TopicsNotReady(f"there is no topic {record.topic}; run `ductor-stream topics create`")
    if code in (KafkaError.INVALID_TIMESTAMP, KafkaError.INVALID_RECORD):
        clock = "is this machine's clock ahead? `ductor-stream doctor` compares it"
        return LogUnavailable(f"the broker refuses a request to {record.topic}: {error.str()} ({clock})")
    return LogUnavailable(f"the broker did not acknowledge the request, it may have it all the same: {error.str()}")
