"""One queue's tasks: a member of the group of its workers that outlives its clients (``ports.TaskSource``).

Delivery: at least once. The committed offset and its metadata are read before the first record of a partition
is handed out, since they say what was done already (protocol 27).
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

import msgspec
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Message, TopicPartition

from ductor_stream.errors import InvalidConfig
from ductor_stream.ports import TaskOwnership, TaskPosition, TaskRecord

logger = logging.getLogger("ductor_stream.kafka.task_source")

Protocol = Literal["classic", "consumer"]

COMMITTED_SECONDS = 5.0
"""How long the group's coordinator may take to say what is committed; asked again while it does not."""

ASK_AGAIN_SECONDS = 1.0

FIRST_REJOIN_SECONDS, LONGEST_REJOIN_SECONDS = 0.2, 5.0
"""Pause before a new consumer after a fatal error: doubled from the first to the longest."""

WAKE_SECONDS = 1.0


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
        self._held: set[int] = set()
        self._unopened: dict[int, float] = {}
        self._paused: set[int] = set()
        self._gone: set[int] = set()
        self._raised: list[BaseException] = []
        self._fatal: KafkaError | None = None
        self._rejoin_at: float | None = None
        self._rejoin_seconds = FIRST_REJOIN_SECONDS

    # -- reading -----------------------------------------------------------------------------

    def subscribe(self, ownership: TaskOwnership) -> None:
        """Join the group. A topic that does not exist yet is waited for, and ``problem`` says so."""
        self._ownership = ownership
        self._join()

    def poll(self, timeout: float, limit: int) -> list[TaskRecord]:
        """Wait at most ``timeout`` seconds for the first record, then take what is there, at most ``limit``."""
        client = self._client
        if client is None:
            self._try_rejoin(timeout)
            return []
        messages = self._collect(client, timeout, limit)
        records = [record for message in messages if (record := self._accept(message)) is not None]
        self._open_late(client)
        if self._fatal is not None:
            self._begin_anew(self._fatal)
        if self._raised:
            raised, self._raised = self._raised, []
            raise raised[0]
        return records

    def _collect(self, client: Consumer, timeout: float, limit: int) -> list[Message]:
        """Messages of one poll; rebalances run in here."""
        try:
            first = client.poll(timeout)
            self._gone.clear()  # what poll returns was fetched after the rebalances that it served
            if first is None:
                return []
            return [first, *client.consume(limit - 1, 0)] if limit > 1 else [first]
        except KafkaException as error:
            self._heard_error(error.args[0])
            return []

    def _accept(self, message: Message) -> TaskRecord | None:
        error = message.error()
        if error is not None:
            self._heard_error(error)
            return None
        partition, offset = message.partition(), message.offset()
        if partition is None or offset is None or partition not in self._held or partition in self._unopened:
            return None
        if partition in self._gone:
            return None  # fetched before a rebalance that was served while the others were collected: it comes again
        headers: Any = message.headers() or ()
        return TaskRecord(partition, offset, message.key(), message.value(), headers)

    def pause(self, partitions: Iterable[int]) -> None:
        """Stop reading these partitions for now."""
        fresh = (set(partitions) & self._held) - self._paused
        self._paused |= fresh
        if fresh and self._client is not None:
            self._client.pause([self._at(p) for p in fresh])

    def resume(self, partitions: Iterable[int]) -> None:
        """Go on reading them."""
        back = set(partitions) & self._paused
        asleep = not self._held - self._paused
        self._paused -= back
        going = [self._at(p) for p in back & self._held - self._unopened.keys()]
        if not going or self._client is None:
            return
        self._client.resume(going)
        if asleep:
            # While all is paused the client's threads sleep up to a second, and only a question ends that.
            with contextlib.suppress(KafkaException):
                self._client.offsets_for_times([TopicPartition(p.topic, p.partition, -1) for p in going], WAKE_SECONDS)

    # -- commits -----------------------------------------------------------------------------

    def commit(self, positions: Mapping[int, TaskPosition], *, wait: bool) -> bool:
        """Commit; without ``wait`` a failure is told to ``uncommitted`` later. False when it is known to have failed."""
        offsets = [
            TopicPartition(self._config.topic, partition, at.offset, at.metadata)
            for partition, at in positions.items()
            if partition in self._held and at.offset is not None
        ]
        if self._client is None or not offsets:
            return not positions
        try:
            if not wait:
                self._client.commit(offsets=offsets)
                return True
            answers = self._client.commit(offsets=offsets, asynchronous=False)
        except KafkaException as error:
            logger.warning("offsets of %s are not committed: %s", self._config.topic, error.args[0].str())
            return False
        return all(answer.error is None for answer in answers)

    def _committed(self, error: KafkaError | None, partitions: list[TopicPartition]) -> None:
        """What became of a commit that was not waited for (called within ``poll``)."""
        failed = frozenset(p.partition for p in partitions if error is not None or p.error is not None)
        if failed and self._ownership is not None:
            logger.warning("offsets of %s are not committed: %s", self._config.topic, error)
            self._ownership.uncommitted(failed)

    # -- rebalances (called by the client from within poll and close) --------------------------

    def _assigned(self, client: Consumer, partitions: list[TopicPartition]) -> None:
        numbers = [p.partition for p in partitions]
        self._held.update(numbers)
        self._paused.difference_update(numbers)
        self._rejoin_seconds = FIRST_REJOIN_SECONDS
        positions = self._ask_committed(client, numbers)
        unknown = [p for p in numbers if p not in positions]
        self._unopened.update(dict.fromkeys(unknown, time.monotonic() + ASK_AGAIN_SECONDS))
        with self._shielded():
            client.incremental_assign([*self._starts(positions), *map(self._at, unknown)])
            if unknown:
                client.pause([self._at(p) for p in unknown])
        logger.info("assigned %s of %s", sorted(numbers), self._config.topic)
        self._tell_assigned(positions)

    def _revoked(self, client: Consumer, partitions: list[TopicPartition]) -> None:
        self._leave_partitions(client, partitions, "revoked")

    def _lost(self, client: Consumer, partitions: list[TopicPartition]) -> None:
        self._leave_partitions(client, partitions, "lost")

    def _leave_partitions(self, client: Consumer, partitions: list[TopicPartition], how: str) -> None:
        numbers = frozenset(p.partition for p in partitions) & self._held
        logger.info("%s %s of %s", how, sorted(numbers), self._config.topic)
        opened = numbers - self._unopened.keys()
        with self._shielded():
            if opened and self._ownership is not None:
                (self._ownership.revoked if how == "revoked" else self._ownership.lost)(opened)
        self._forget(numbers)
        with self._shielded():
            client.incremental_unassign(partitions)

    def _forget(self, numbers: frozenset[int]) -> None:
        self._held -= numbers
        self._paused -= numbers
        self._gone |= numbers
        for partition in numbers:
            self._unopened.pop(partition, None)

    def _ask_committed(self, client: Consumer, numbers: list[int]) -> dict[int, TaskPosition]:
        """What is committed of these partitions; those that the coordinator does not tell are left out."""
        try:
            answers = client.committed([self._at(p) for p in numbers], COMMITTED_SECONDS)
        except KafkaException as error:
            logger.warning("committed offsets of %s are not known yet: %s", self._config.topic, error)
            return {}
        return {
            answer.partition: TaskPosition(answer.offset if answer.offset >= 0 else None, answer.metadata or "")
            for answer in answers
            if answer.error is None
        }

    def _open_late(self, client: Consumer) -> None:
        """Ask again for partitions whose committed offset could not be read when they were assigned."""
        due = [p for p, at in self._unopened.items() if time.monotonic() >= at]
        if not due:
            return
        positions = self._ask_committed(client, due)
        self._unopened.update(dict.fromkeys(due, time.monotonic() + ASK_AGAIN_SECONDS))
        if positions:
            client.incremental_unassign([self._at(p) for p in positions])
            client.incremental_assign(self._starts(positions))
            for partition in positions:
                del self._unopened[partition]
            self._paused.difference_update(positions)
            self._tell_assigned(positions)

    def _tell_assigned(self, positions: dict[int, TaskPosition]) -> None:
        with self._shielded():
            if positions and self._ownership is not None:
                self._ownership.assigned(positions)

    def _starts(self, positions: Mapping[int, TaskPosition]) -> list[TopicPartition]:
        return [
            self._at(p, OFFSET_BEGINNING if position.offset is None else position.offset)
            for p, position in positions.items()
        ]

    @contextlib.contextmanager
    def _shielded(self) -> Any:
        """What is raised in a callback would leave the client in between: it is raised from ``poll`` afterwards."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 (raised again from poll, whatever it is)
            self._raised.append(error)

    # -- joining, and joining again ------------------------------------------------------------

    def problem(self) -> str:
        """A sentence about what keeps this queue from being read, else empty."""
        topic = self._config.topic
        if self._config.known() is False:
            return f"topic {topic} does not exist yet: it is waited for (create it by `ductor-stream topics create`)"
        if self._rejoin_at is not None:
            return f"group {self._config.group} is joined again after an error"
        return ""

    def _join(self) -> None:
        self._fatal, self._rejoin_at = None, None
        self._client = self._config.make(self._protocols[0], self._heard_error, self._committed)
        self._client.subscribe(
            [self._config.topic], on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._lost
        )
        logger.info("joining group %s by the %s protocol", self._config.group, self._protocols[0])

    def _heard_error(self, error: KafkaError) -> None:
        if error.fatal():
            self._fatal = self._fatal or error
        elif error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
            logger.debug("consumer: %s", error.str())
        else:
            logger.warning("consumer: %s", error.str())

    def _begin_anew(self, error: KafkaError) -> None:
        """A fatal error ends the client: what it held is lost, and another one joins after a pause."""
        lost = frozenset(self._held - self._unopened.keys())
        self._forget(frozenset(self._held))
        self._close_client()
        if lost and self._ownership is not None:
            self._ownership.lost(lost)
        if error.code() in _NOT_SPOKEN and len(self._protocols) > 1:
            logger.warning("no group of the %s protocol here: %s", self._protocols.pop(0), error.str())
            self._rejoin_at = time.monotonic()
            return
        if error.code() in _NOT_SPOKEN:
            raise InvalidConfig(f"protocol = {self._protocols[0]}, but the broker answers: {error.str()}")
        logger.error("fatal consumer error, joining again in %.1f s: %s", self._rejoin_seconds, error.str())
        self._rejoin_at = time.monotonic() + self._rejoin_seconds
        self._rejoin_seconds = min(self._rejoin_seconds * 2, LONGEST_REJOIN_SECONDS)

    def _try_rejoin(self, timeout: float) -> None:
        wait = (self._rejoin_at or 0.0) - time.monotonic()
        if wait > 0:
            time.sleep(min(wait, timeout))
        if wait <= timeout:
            self._join()

    def _close_client(self) -> None:
        client, self._client = self._client, None
        try:
            if client is not None:
                client.close()
        except (KafkaException, RuntimeError) as error:
            logger.warning("closing the consumer: %s", error)

    def close(self) -> None:
        """Leave the group (``revoked`` hears of what was held)."""
        client = self._client
        if client is not None:
            # The client stays usable until it has closed: the callback commits by it.
            try:
                client.close()
            except (KafkaException, RuntimeError) as error:
                logger.warning("closing the consumer: %s", error)
            self._client = None

    def _at(self, partition: int, offset: int = 0) -> TopicPartition:
        return TopicPartition(self._config.topic, partition, offset)


_NOT_SPOKEN = frozenset(
    {
        KafkaError.UNSUPPORTED_VERSION,
        KafkaError._UNSUPPORTED_FEATURE,
        KafkaError.GROUP_ID_NOT_FOUND,
        KafkaError.INCONSISTENT_GROUP_PROTOCOL,
    }
)
"""What a broker says that does not speak a group protocol, or may not convert a group with members of the other."""
