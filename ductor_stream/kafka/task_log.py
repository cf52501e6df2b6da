"""``ports.TaskLog`` over Kafka: a source for each queue, one producer for all threads, and ``attempt-control``."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any, Literal

import msgspec
from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)

from ductor_stream.errors import LogUnavailable
from ductor_stream.kafka.options import HeardProducer, client_options, open_admin, open_client
from ductor_stream.kafka.task_producer import TaskProducer
from ductor_stream.kafka.task_source import KafkaTaskSource, Protocol, SourceConfig
from ductor_stream.kafka.watch import ClusterWatch, TopicState
from ductor_stream.ports import Delivered, Outgoing, TaskRecord
from ductor_stream.protocol.topics import Topics

logger = logging.getLogger("ductor_stream.kafka.task_log")

PREFETCHED_TASKS = 2_000
"""Tasks that the client fetches ahead; they are dropped whenever the worker is full and pauses."""

STOPS_AT_ONCE = 500

END_SECONDS = 3.0
"""How long the broker may take to say where ``attempt-control`` ends; asked again while it does not."""


class TaskLogConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What a ``KafkaTaskLog`` needs to know."""

    bootstrap: str
    topics: Topics
    options: Mapping[str, Any] = {}
    """The user's librdkafka options (see ``kafka.options``)."""
    instance_id: str | None = None
    """A stable name of this process (static membership): its restart disturbs no other member."""
    protocol: Literal["auto", "consumer", "classic"] = "auto"
    """The group protocol. ``auto`` is the classic one with its cooperative assignor: there the client says how soon a
    killed worker's tasks go to others, in the new one only the broker does, after 45 s by default."""
    session_timeout_ms: int = 6_000
    """Classic protocol: how long a silent worker keeps its partitions."""
    close_timeout: float = 5.0
    """Seconds that ``close`` waits for acknowledgements."""


class KafkaTaskLog:
    """Kafka as a worker needs it. Used from any thread, except ``stops``."""

    def __init__(self, config: TaskLogConfig) -> None:
        """Start the producer and the watch; groups are joined by the sources. Raises InvalidConfig."""
        self._config = config
        self._topics = config.topics
        admin = open_admin(config.bootstrap, config.options)
        self._watch = ClusterWatch(admin, config.bootstrap, config.topics)
        self._watch.start()
        self._producer = TaskProducer(self._make_producer)
        self._control = _Control(self._make_control(), config.topics.attempt_control, self._states)

    # -- tasks -------------------------------------------------------------------------------

    def source(self, queue: str) -> KafkaTaskSource:
        """The tasks of a queue. Raises InvalidDefinition for a queue that is no name."""
        topic, group = self._topics.tasks(queue), self._topics.worker_group(queue)

        def make(protocol: Protocol, heard: Callable[[KafkaError], None], committed: Callable[..., None]) -> Consumer:
            return self._make_consumer(group, protocol, heard, committed)

        chosen = self._config.protocol
        protocols: tuple[Protocol, ...] = ("classic", "consumer") if chosen == "auto" else (chosen,)
        return KafkaTaskSource(SourceConfig(topic, group, make, protocols, lambda: self._is_known(topic)))

    def _is_known(self, topic: str) -> bool | None:
        states = self._states()
        if states is None:
            return None
        if topic not in states:
            self._watch.look_again()
        return topic in states

    def _states(self) -> Mapping[str, TopicState] | None:
        try:
            return self._watch.states(0.0)
        except LogUnavailable:
            return None

    # -- results -----------------------------------------------------------------------------

    def produce(self, record: Outgoing, delivered: Delivered) -> None:
        """Hand a record to the producer. Never blocks, never raises; ``delivered`` may be called before it returns."""
        self._producer.produce(record, delivered)

    def flush(self, timeout: float) -> int:
        """Wait for outstanding acknowledgements; returns how many are still open."""
        return self._producer.flush(timeout)

    # -- the rest ----------------------------------------------------------------------------

    def stops(self, timeout: float) -> list[TaskRecord]:
        """Records of ``attempt-control`` that came after this began to read; waits at most ``timeout`` seconds."""
        return self._control.read(timeout)

    def problem(self) -> str:
        """A sentence when the broker cannot be reached, else empty."""
        if self._watch.healthy():
            return "" if self._control.reads else f"{self._topics.attempt_control} is not read yet"
        return f"Kafka does not answer: {self._watch.problem() or 'for some seconds now'}"

    def close(self) -> None:
        """Close the producer and what else is open; sources are closed by their own threads before."""
        self._control.close()
        self._producer.close(self._config.close_timeout)
        self._watch.close()

    # -- clients -----------------------------------------------------------------------------

    def _make_producer(self, heard: Callable[[KafkaError], None]) -> Producer:
        options = client_options("producer", self._config.bootstrap, self._config.options)
        return open_client(HeardProducer, options | {"error_cb": heard})

    def _make_consumer(
        self, group: str, protocol: Protocol, heard: Callable[[KafkaError], None], committed: Callable[..., None]
    ) -> Consumer:
        config = self._config
        user: dict[str, Any] = {"queued.min.messages": PREFETCHED_TASKS, **config.options}
        own: dict[str, Any] = {
            "group_id": group,
            "group_instance_id": config.instance_id,
            "group_protocol": protocol,
            "auto_offset_reset": "earliest",
        }
        if protocol == "classic":
            own["partition_assignment_strategy"] = "cooperative-sticky"
            user = {"session.timeout.ms": config.session_timeout_ms, "heartbeat.interval.ms": 1_000, **user}
        else:
            refused = ("session.timeout.ms", "heartbeat.interval.ms")
            user = {name: value for name, value in user.items() if name not in refused}
        options = client_options("consumer", config.bootstrap, user, **own)
        return open_client(Consumer, options | {"error_cb": heard, "on_commit": committed})

    def _make_control(self) -> Consumer:
        # A consumer must name a group; this one never joins or commits, so that none comes to be.
        own = {"group_id": f"{self._topics.attempt_control}.reader", "auto_offset_reset": "latest"}
        options = client_options("consumer", self._config.bootstrap, self._config.options, **own)
        return open_client(Consumer, options)


def _record(message: Message) -> TaskRecord:
    headers: Any = message.headers() or ()
    return TaskRecord(message.partition() or 0, message.offset() or 0, message.key(), message.value(), headers)


class _Control:
    """``attempt-control``, all partitions, from where it ended when this began. One thread reads."""

    def __init__(self, client: Consumer, topic: str, states: Callable[[], Mapping[str, TopicState] | None]) -> None:
        self._client = client
        self._topic = topic
        self._states = states
        self._assigned: tuple[str, int] | None = None
        self._looked = False

    def read(self, timeout: float) -> list[TaskRecord]:
        self._follow()
        try:
            first = self._client.poll(timeout)
            messages = [] if first is None else [first, *self._client.consume(STOPS_AT_ONCE, 0)]
        except KafkaException as error:
            logger.warning("reading %s: %s", self._topic, error)
            return []
        return [_record(message) for message in messages if message.error() is None]

    @property
    def reads(self) -> bool:
        """Whether the topic was found and is read, or is known to be missing."""
        return self._looked

    def _follow(self) -> None:
        """Read the topic as it is now: it may come late, grow, or be created anew."""
        states = self._states()
        if states is None:
            return
        state = states.get(self._topic)
        known = None if state is None else (state.id, state.partitions)
        if known == self._assigned:
            self._looked = True
            return
        old = self._assigned[1] if known and self._assigned and known[0] == self._assigned[0] else 0
        try:
            parts = [self._start(n) for n in range(old, known[1] if known else 0)]
            if old:
                self._client.incremental_assign(parts)
            else:
                self._client.assign(parts)
        except KafkaException as error:
            logger.warning("%s cannot be read yet: %s", self._topic, error)
            return
        self._assigned, self._looked = known, True

    def _start(self, partition: int) -> TopicPartition:
        # What was there before we looked is for attempts that this process never had; what is new is read whole.
        place = TopicPartition(self._topic, partition, OFFSET_BEGINNING)
        if not self._looked:
            # A number, not a word for it: the client takes a while to look the end up, and what comes meanwhile counts.
            _, place.offset = self._client.get_watermark_offsets(place, END_SECONDS)
        return place

    def close(self) -> None:
        self._client.close()
