"""What the group has given one client of a queue: from where each partition is read, what is committed of it.

A partition is handed out only after its committed offset and metadata were read, since they say what was done
already (protocol 27).
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterable, Iterator, Mapping

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, TopicPartition

from ductor_stream.kafka.bounded import CLOSE_SECONDS, GivenUp, within
from ductor_stream.ports import TaskOwnership, TaskPosition

logger = logging.getLogger("ductor_stream.kafka.task_source")

COMMITTED_SECONDS = 5.0
"""How long the group's coordinator may take to say what is committed; asked again while it does not."""

ASK_AGAIN_SECONDS = 1.0

WAKE_SECONDS = 1.0
"""How long the question may take that wakes the client's threads: longer than a fetch waits (half a second)."""


class TaskAssignment:
    """The partitions of one client. Its callbacks run within ``poll`` and ``close`` of that client."""

    def __init__(self, client: Consumer, topic: str, ownership: TaskOwnership) -> None:
        self._client = client
        self._topic = topic
        self._ownership = ownership
        self._held: set[int] = set()
        self._unopened: dict[int, float] = {}
        self._paused: set[int] = set()
        self._raised: list[BaseException] = []
        self._in_callback = False
        self.gone: set[int] = set()
        """Partitions that were taken away since this was cleared."""

    def subscribe(self) -> None:
        """Join the group."""
        self._client.subscribe([self._topic], on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._lost)

    def is_open(self, partition: int) -> bool:
        """Whether records of the partition may be handed out."""
        return partition in self._held and partition not in self._unopened and partition not in self.gone

    def raise_what_was_raised(self) -> None:
        """Raise what the owner raised in a callback, where it would have left the client in between."""
        if self._raised:
            raised, self._raised = self._raised, []
            raise raised[0]

    # -- reading -----------------------------------------------------------------------------

    def pause(self, partitions: Iterable[int]) -> None:
        """Stop reading these partitions for now."""
        fresh = (set(partitions) & self._held) - self._paused
        self._paused |= fresh
        if fresh:
            self._client.pause([self._at(p) for p in fresh])

    def resume(self, partitions: Iterable[int]) -> None:
        """Go on reading them."""
        back = set(partitions) & self._paused
        asleep = not self._held - self._paused
        self._paused -= back
        going = [self._at(p) for p in back & self._held - self._unopened.keys()]
        if not going:
            return
        self._client.resume(going)
        if asleep:
            # While all is paused the client's threads sleep up to a second, and only a question ends that.
            with contextlib.suppress(KafkaException):
                self._client.offsets_for_times([TopicPartition(p.topic, p.partition, -1) for p in going], WAKE_SECONDS)

    def open_late(self) -> None:
        """Ask again for partitions whose committed offset could not be read when they were assigned."""
        due = [p for p, at in self._unopened.items() if time.monotonic() >= at]
        if not due:
            return
        positions = self._ask_committed(due)
        self._unopened.update(dict.fromkeys(due, time.monotonic() + ASK_AGAIN_SECONDS))
        if positions:
            self._client.incremental_unassign([self._at(p) for p in positions])
            self._client.incremental_assign(self._starts(positions))
            for partition in positions:
                del self._unopened[partition]
            self._paused.difference_update(positions)
            self._tell_assigned(positions)

    # -- commits -----------------------------------------------------------------------------

    def commit(self, positions: Mapping[int, TaskPosition], *, wait: bool) -> bool:
        """Commit what is ours of these; without ``wait`` a failure is told later. False when it is known to have failed."""
        offsets = [
            TopicPartition(self._topic, partition, at.offset, at.metadata)
            for partition, at in positions.items()
            if partition in self._held and at.offset is not None
        ]
        if not offsets:
            return not positions
        try:
            if not wait:
                self._client.commit(offsets=offsets)
                return True
            answers = self._commit_and_wait(offsets)
        except GivenUp as error:
            logger.warning("offsets of %s are not committed: %s", self._topic, error)
            return False
        except KafkaException as error:
            logger.warning("offsets of %s are not committed: %s", self._topic, error.args[0].str())
            return False
        return all(answer.error is None for answer in answers)

    def _commit_and_wait(self, offsets: list[TopicPartition]) -> list[TopicPartition]:
        if self._in_callback:
            # A client stops fetching for good when another thread commits by it in the middle of a rebalance.
            return self._client.commit(offsets=offsets, asynchronous=False)
        return within(CLOSE_SECONDS, lambda: self._client.commit(offsets=offsets, asynchronous=False))

    def heard_commit(self, error: KafkaError | None, partitions: list[TopicPartition]) -> None:
        """What became of a commit that was not waited for."""
        failed = frozenset(p.partition for p in partitions if error is not None or p.error is not None)
        if failed:
            logger.warning("offsets of %s are not committed: %s", self._topic, error)
            self._ownership.uncommitted(failed)

    # -- rebalances --------------------------------------------------------------------------

    def _assigned(self, _client: Consumer, partitions: list[TopicPartition]) -> None:
        numbers = [p.partition for p in partitions]
        self._held.update(numbers)
        self._paused.difference_update(numbers)
        positions = self._ask_committed(numbers)
        unknown = [p for p in numbers if p not in positions]
        self._unopened.update(dict.fromkeys(unknown, time.monotonic() + ASK_AGAIN_SECONDS))
        with self._shielded():
            self._client.incremental_assign([*self._starts(positions), *map(self._at, unknown)])
            if unknown:
                self._client.pause([self._at(p) for p in unknown])
        logger.info("assigned %s of %s", sorted(numbers), self._topic)
        self._tell_assigned(positions)

    def _revoked(self, _client: Consumer, partitions: list[TopicPartition]) -> None:
        opened = self._opened_of(partitions)
        logger.info("revoked %s of %s", sorted(opened), self._topic)
        self._in_callback = True
        with self._shielded():
            if opened:
                self._ownership.revoked(opened)
        self._in_callback = False
        self._let_go(partitions)

    def _lost(self, _client: Consumer, partitions: list[TopicPartition]) -> None:
        opened = self._opened_of(partitions)
        logger.warning("lost %s of %s", sorted(opened), self._topic)
        with self._shielded():
            if opened:
                self._ownership.lost(opened)
        self._let_go(partitions)

    def lose_all(self) -> None:
        """The client has failed for good: what it held is somebody else's, or will be."""
        opened = frozenset(self._held - self._unopened.keys())
        self._forget(self._held)
        if opened:
            self._ownership.lost(opened)

    def _opened_of(self, partitions: list[TopicPartition]) -> frozenset[int]:
        return frozenset(p.partition for p in partitions) & self._held - self._unopened.keys()

    def _let_go(self, partitions: list[TopicPartition]) -> None:
        self._forget({p.partition for p in partitions})
        with self._shielded():
            self._client.incremental_unassign(partitions)

    def _forget(self, numbers: set[int]) -> None:
        self.gone |= numbers
        for partition in set(numbers):
            self._held.discard(partition)
            self._paused.discard(partition)
            self._unopened.pop(partition, None)

    # -- inside ------------------------------------------------------------------------------

    def _ask_committed(self, numbers: list[int]) -> dict[int, TaskPosition]:
        """What is committed of these partitions; those that the coordinator does not tell are left out."""
        try:
            answers = self._client.committed([self._at(p) for p in numbers], COMMITTED_SECONDS)
        except KafkaException as error:
            logger.warning("committed offsets of %s are not known yet: %s", self._topic, error)
            return {}
        return {
            answer.partition: TaskPosition(answer.offset if answer.offset >= 0 else None, answer.metadata or "")
            for answer in answers
            if answer.error is None
        }

    def _tell_assigned(self, positions: dict[int, TaskPosition]) -> None:
        with self._shielded():
            if positions:
                self._ownership.assigned(positions)

    def _starts(self, positions: Mapping[int, TaskPosition]) -> list[TopicPartition]:
        return [
            self._at(p, OFFSET_BEGINNING if position.offset is None else position.offset)
            for p, position in positions.items()
        ]

    @contextlib.contextmanager
    def _shielded(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            logger.exception("a rebalance of %s could not be followed", self._topic)
            self._raised.append(error)

    def _at(self, partition: int, offset: int = 0) -> TopicPartition:
        return TopicPartition(self._topic, partition, offset)
