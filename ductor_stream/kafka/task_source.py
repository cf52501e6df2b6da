"""One queue's tasks: a member of the group of its workers that outlives its clients (``ports.TaskSource``).

Delivery: at least once.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

import msgspec
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from ductor_stream.errors import InvalidConfig
from ductor_stream.kafka.bounded import CLOSE_SECONDS, GivenUp, within
from ductor_stream.kafka.options import EVICTED, Evictions, evicted, in_words, is_fatal
from ductor_stream.kafka.repeats import REPEATS
from ductor_stream.kafka.task_assignment import TaskAssignment
from ductor_stream.ports import TaskOwnership, TaskPosition, TaskRecord

logger = logging.getLogger("ductor_stream.kafka.task_source")
logger.addFilter(REPEATS)  # what a client hears of its connections comes many times a second

Protocol = Literal["classic", "consumer"]

FIRST_REJOIN_SECONDS, LONGEST_REJOIN_SECONDS = 0.2, 5.0
"""Pause before a new consumer after a fatal error: doubled from the first to the longest."""

NOT_SPOKEN = frozenset(
    {
        KafkaError.UNSUPPORTED_VERSION,
        KafkaError._UNSUPPORTED_FEATURE,
        KafkaError.GROUP_ID_NOT_FOUND,
        KafkaError.INCONSISTENT_GROUP_PROTOCOL,
    }
)
"""What a broker says that does not speak a group protocol, or may not convert a group with members of the other."""


class SourceConfig(msgspec.Struct, frozen=True):
    """How to read a queue. ``make`` builds a client for a protocol, given callbacks for errors and for commits."""

    topic: str
    group: str
    make: Callable[[Protocol, Callable[[KafkaError], None], Callable[..., None]], Consumer]
    protocols: tuple[Protocol, ...]
    """In order of preference."""
    known: Callable[[], bool | None]
    """Whether the topic exists; None while the cluster does not say."""


class KafkaTaskSource:
    """The tasks of one queue. One thread uses it; ``problem`` any."""

    def __init__(self, config: SourceConfig) -> None:
        self._config = config
        self._protocols = list(config.protocols)
        self._ownership: TaskOwnership | None = None
        self._client: Consumer | None = None
        self._assignment: TaskAssignment | None = None
        self._evictions = Evictions()
        self._number = 0  # of the client: what a former one still says is no news
        self._fatal: KafkaError | None = None
        self._rejoin_at: float | None = None
        self._rejoin_seconds = FIRST_REJOIN_SECONDS

    # -- reading -----------------------------------------------------------------------------

    def subscribe(self, ownership: TaskOwnership) -> None:
        """Join the group. A topic that does not exist yet is waited for, and ``problem`` says so."""
        self._ownership = ownership
        self._join(ownership)

    def poll(self, timeout: float, limit: int) -> list[TaskRecord]:
        """Wait at most ``timeout`` seconds for the first record, then take what is there, at most ``limit``.

        Raises InvalidConfig when the broker does not speak the group protocol that is asked for, and when another process
        has taken our stable name.
        """
        client, assignment = self._client, self._assignment
        if client is None or assignment is None:
            self._try_rejoin(timeout)
            return []
        assignment.raise_what_was_raised()
        messages = self._collect(client, assignment, timeout, limit)
        records = [record for message in messages if (record := self._accept(assignment, message)) is not None]
        assignment.open_late()
        if records:
            self._rejoin_seconds = FIRST_REJOIN_SECONDS
        if self._fatal is not None:
            self._begin_anew(assignment, self._fatal)
            return []  # what was fetched of partitions that are lost by now; it comes again
        if not records:  # else they would be lost with it: it is raised by the next call
            assignment.raise_what_was_raised()
        return records

    def _collect(self, client: Consumer, assignment: TaskAssignment, timeout: float, limit: int) -> list[Message]:
        """Messages of one poll; rebalances run in here."""
        try:
            first = client.poll(timeout)
            assignment.gone.clear()  # what poll returns was fetched after the rebalances that it served
            if first is None:
                return []
            return [first, *client.consume(limit - 1, 0)] if limit > 1 else [first]
        except KafkaException as error:
            self._heard_error(error.args[0])
            return []

    def _accept(self, assignment: TaskAssignment, message: Message) -> TaskRecord | None:
        error = message.error()
        if error is not None:
            self._heard_error(error)
            return None
        partition, offset = message.partition(), message.offset()
        if partition is None or offset is None or not assignment.is_open(partition):
            return None  # fetched before a rebalance that was served while the others were collected: it comes again
        headers: Any = message.headers() or ()
        return TaskRecord(partition, offset, message.key(), message.value(), headers)

    def pause(self, partitions: Iterable[int]) -> None:
        """Stop reading these partitions for now."""
        if self._assignment is not None:
            self._assignment.pause(partitions)

    def resume(self, partitions: Iterable[int]) -> None:
        """Go on reading them."""
        if self._assignment is not None:
            self._assignment.resume(partitions)

    def commit(self, positions: Mapping[int, TaskPosition], *, wait: bool) -> bool:
        """Commit; without ``wait`` a failure is told to ``uncommitted`` later. False when it is known to have failed."""
        return self._assignment is not None and self._assignment.commit(positions, wait=wait)

    # -- joining, and joining again ------------------------------------------------------------

    def problem(self) -> str:
        """A sentence about what keeps this queue from being read, else empty."""
        topic = self._config.topic
        if self._config.known() is False:
            return f"topic {topic} does not exist yet: it is waited for (create it by `ductor-stream topics create`)"
        if self._rejoin_at is not None:
            return f"group {self._config.group} is joined again after an error"
        return ""

    def _join(self, ownership: TaskOwnership) -> None:
        self._fatal, self._rejoin_at = None, None
        self._number = number = self._number + 1

        def heard(error: KafkaError) -> None:
            if number == self._number:
                self._heard_error(error)

        client = self._config.make(self._protocols[0], heard, self._heard_commit)
        self._client, self._assignment = client, TaskAssignment(client, self._config.topic, ownership)
        self._assignment.subscribe()
        logger.info("joining group %s by the %s protocol", self._config.group, self._protocols[0])

    def _heard_commit(self, error: KafkaError | None, partitions: list[TopicPartition]) -> None:
        if self._assignment is not None:
            self._assignment.heard_commit(error, partitions)

    def _heard_error(self, error: KafkaError) -> None:
        if is_fatal(error):
            self._fatal = self._fatal or error
        elif error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
            logger.debug("consumer: %s", error.str())
        else:
            logger.warning("consumer: %s", in_words(error))

    def _begin_anew(self, assignment: TaskAssignment, error: KafkaError) -> None:
        """A fatal error ends the client: what it held is lost, and another one joins after a pause."""
        assignment.lose_all()
        self.close()
        if EVICTED in error.str() and self._evictions.again():
            raise InvalidConfig(evicted(self._config.group))
        if error.code() in NOT_SPOKEN and len(self._protocols) > 1:
            logger.warning("no group of the %s protocol here: %s", self._protocols.pop(0), error.str())
            self._rejoin_at = time.monotonic()
            return
        if error.code() in NOT_SPOKEN:
            raise InvalidConfig(f"protocol = {self._protocols[0]}, but the broker answers: {error.str()}")
        logger.error("fatal consumer error, joining again in %.1f s: %s", self._rejoin_seconds, error.str())
        self._rejoin_at = time.monotonic() + self._rejoin_seconds
        self._rejoin_seconds = min(self._rejoin_seconds * 2, LONGEST_REJOIN_SECONDS)

    def _try_rejoin(self, timeout: float) -> None:
        wait = (self._rejoin_at or 0.0) - time.monotonic()
        if wait > 0:
            time.sleep(min(wait, timeout))
        if wait <= timeout and self._ownership is not None:
            self._join(self._ownership)

    def close(self) -> None:
        """Leave the group (``revoked`` hears of what was held)."""
        try:
            if self._client is not None:
                within(CLOSE_SECONDS, self._client.close)  # the callback still commits by it
        except GivenUp as error:
            logger.warning(
                "group %s is not left in good order, its broker does not answer: %s", self._config.group, error
            )
        except (KafkaException, RuntimeError) as error:
            logger.warning("closing the consumer: %s", error)
        self._client = self._assignment = None
