"""The intake of one queue: polls, takes what there are slots for, commits what is done. One thread each.

It never waits for a step: when all slots are taken the partitions are paused, and rebalances are served all
the same.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping

import msgspec

from ductor_stream.errors import DataError, TransientError
from ductor_stream.ports import TaskPosition, TaskRecord, TaskSource
from ductor_stream.protocol.outbound import DeadLetter, Encoder
from ductor_stream.protocol.worker import WorkerCodec
from ductor_stream.telemetry.logs import get_logger, keys_of
from ductor_stream.worker import outcomes
from ductor_stream.worker.attempt import Order
from ductor_stream.worker.deliveries import LetterDelivery, TopicDelivery, Way
from ductor_stream.worker.executor import Executor
from ductor_stream.worker.ledger import Place
from ductor_stream.worker.losses import Careful
from ductor_stream.worker.slots import Slots

_log = get_logger(__name__)

POLL_S = 0.1
"""The longest wait for a task: what else is due (commits, the drain) waits no longer than this."""

COMMIT_EVERY_S = 0.1
"""Between two commits. What is done within is run again after a crash at most, or told as late."""

REST_S = 0.05
"""How long a poll may take that only serves rebalances."""

LAST_COMMIT_S = 5.0
"""How long the end may be held up by a rebalance, which lasts until its slowest member has come. Then what is not
committed is run again by others."""

HANDOVER_S = 2.0
"""How long a rebalance is held up for results that are on their way; the others of the group wait for it."""

DOUBTFUL_S = 1.0
"""For how long after the first task of a partition what begins is written down before, and after the last of one under which
workers were lost: what has ended a worker was begun within ``COMMIT_EVERY_S`` of its last commit, or behind what it ran
then, so the next one comes to it at once."""

MOST_AT_ONCE = 500

ASK_AGAIN_S = 1.0
"""Until a task is looked at again that could not be read because a schema registry is away."""


class IntakeConfig(msgspec.Struct, frozen=True):
    """What an intake works with. ``letters`` writes dead letters; the codec is this intake's own, ``careful`` the process's."""

    queue: str
    topic: str
    slots: Slots
    way: Way
    codec: WorkerCodec
    letters: Encoder
    careful: Careful


class Intake:
    """Reads one queue until it is told to leave. ``ports.TaskOwnership`` of its source."""

    def __init__(self, config: IntakeConfig, source: TaskSource, executor: Executor) -> None:
        self._config = config
        self._source = source
        self._executor = executor
        self._slots = config.slots
        self._ledger = config.way.ledger
        self._monotonic = config.way.clock.monotonic
        self._held: list[TaskRecord] = []
        self._doubtful: dict[int, float] = {}  # until when what begins of a partition is written down before
        self._suspects: dict[int, list[Place]] = {}  # what runs under which workers were lost
        self._paused: set[int] = set()
        self._commit_at = 0.0
        self._read_again_at = 0.0
        self._draining = False
        self._leaving = threading.Event()
        self._ending = False

    # -- from outside -----------------------------------------------------------------------

    @property
    def open_places(self) -> int:
        """How many tasks of the topic were taken and are not done."""
        return self._ledger.open_places

    def problem(self) -> str:
        """What keeps the queue from being read, else empty."""
        return self._source.problem()

    def drain(self) -> None:
        """Take nothing more; stay a member, so that what runs can be committed."""
        self._draining = True

    def ending(self) -> None:
        """What runs here is about to be abandoned: it is not passed any more where a partition goes meanwhile."""
        self._ending = True

    def leave(self) -> None:
        """Commit what is done, leave the group, end ``run``."""
        self._leaving.set()

    # -- the loop ---------------------------------------------------------------------------

    def run(self) -> None:
        """Read until ``leave``."""
        self._source.subscribe(self)
        try:
            while not self._leaving.is_set():
                self.turn()
        finally:
            self._draining = True
            self._leaving.set()
            try:
                self._last_commit()
            finally:
                self._source.close()

    def turn(self) -> None:
        """One pass: commit what is done, take what there are slots for, or serve rebalances at least."""
        if self._monotonic() >= self._commit_at:
            self._commit(wait=False)
        if self._draining:
            self._rest()
            return
        held, self._held = self._held, []
        self._start(held)
        if not self._slots.wait_free(POLL_S) or self._draining or self._config.way.outlet.congested:
            self._rest()
        else:
            waiting = {record.partition for record in self._held}
            self._pause(waiting | {p for p in self._ledger.partitions if not self._ledger.has_room(p)})
            self._start(self._source.poll(POLL_S, min(self._slots.free, MOST_AT_ONCE)))

    def _rest(self) -> None:
        """Serve rebalances and take nothing."""
        self._pause(set(self._ledger.partitions))
        found = self._source.poll(REST_S, 0)
        self._held += found  # as they are after it: a rebalance in there may have let some go

    def _pause(self, wanted: set[int]) -> None:
        if wanted != self._paused:
            self._source.pause(wanted - self._paused)
            self._source.resume(self._paused - wanted)
            self._paused = wanted

    def _last_commit(self) -> None:
        """Commit all that is done. A rebalance under way refuses that, and goes on by polling."""
        until = self._monotonic() + LAST_COMMIT_S
        # What was sent without waiting for an answer may be refused yet.
        self._ledger.touch(self._ledger.partitions)
        while not self._commit(wait=True) and self._monotonic() < until:
            self._rest()

    def _write_down(self) -> None:
        """Commit what is about to begin, so that it counts as begun should this process not outlive it (decision 15).

        And what is done, of all partitions: that must not be blamed.
        """
        positions = self._ledger.due()
        if positions and not self._source.commit(positions, wait=True):
            self._ledger.touch(positions)  # so be it: one worker more may be lost before it is given up

    def _commit(self, *, wait: bool) -> bool:
        """Commit what has changed; False when it is known to have failed, and is to be tried again."""
        self._commit_at = self._monotonic() + COMMIT_EVERY_S
        self._config.way.observe_acks()
        positions = self._ledger.due(handed_over=self._leaving.is_set())
        if not positions or self._source.commit(positions, wait=wait):
            return True
        self._ledger.touch(positions)
        return False

    # -- records ----------------------------------------------------------------------------

    def _start(self, records: list[TaskRecord]) -> None:
        # In the order of each partition: the window takes what was jumped over for done.
        behind = {record.partition for record in self._held}
        begun: list[TopicDelivery] = []
        for record in records:
            if record.partition in behind or not self._take(record, begun):
                behind.add(record.partition)
                self._held.append(record)
        if begun:
            at_stake = [delivery for delivery in begun if self._is_at_stake(delivery)]
            if at_stake:
                self._write_down()
            self._ledger.begin_all((delivery.place, delivery) for delivery in begun)
            queue, slots = self._config.queue, self._slots
            self._executor.submit_all([Order(delivery.task, queue, slots, delivery) for delivery in begun])

    def _is_at_stake(self, delivery: TopicDelivery) -> bool:
        (partition, offset, _), now = delivery.place, self._monotonic()
        suspects = self._suspects.get(partition, [])
        if self._ledger.losses(partition, offset) > 0:
            suspects = self._suspects[partition] = [*suspects, delivery.place]
        if suspects or partition not in self._doubtful:
            self._doubtful[partition] = now + DOUBTFUL_S
        if suspects:  # what begins first after their end is at stake yet
            self._suspects[partition] = [place for place in suspects if not self._ledger.is_done(place)]
        return now < self._doubtful[partition]

    def _take(self, record: TaskRecord, begun: list[TopicDelivery]) -> bool:
        """Take a record, or say that it has to wait."""
        state = self._ledger.look(record.partition, record.offset)
        if state == "done":
            self._ledger.take(record.partition, record.offset)
            self._config.way.metrics.worker_skipped[self._config.queue].inc()
            return True
        if state == "full" or self._draining or self._read_again_at > self._monotonic() or not self._slots.take():
            return False
        try:
            task = self._config.codec.decode_task(record.key, record.value, record.headers)
        except TransientError as error:
            _log.warning("a task cannot be read yet", queue=self._config.queue, error=str(error))
            self._read_again_at = self._monotonic() + ASK_AGAIN_S
            self._slots.release()
            return False
        except DataError as error:
            self._slots.release()
            self._bury(record, error)
            return True
        losses = self._ledger.losses(record.partition, record.offset)
        if losses and self._executor.knows(task.fence):
            # The partition was lost, and has come back to the worker that runs it, or has just run it: one of them is it.
            self._ledger.forgive(record.partition, record.offset)
            losses = 0
        verdict = self._config.careful.verdict(losses, beside=bool(begun))
        if verdict == "wait":
            self._slots.release()
            return False
        delivery = TopicDelivery(task, self._ledger.take(record.partition, record.offset), self._config.way)
        if verdict == "give up":
            self._give_up(delivery, losses)
            return True
        if verdict == "alone":
            _log.warning("workers were lost under this task, it begins again", lost=losses, **keys_of(task.fence))
            self._config.careful.begins_alone(lambda: not self._ledger.is_done(delivery.place))
        begun.append(delivery)
        return True

    def _give_up(self, delivery: TopicDelivery, losses: int) -> None:
        """Report the attempt as failed; the partition moves on."""
        _log.error(
            "workers are lost under this task, its attempt is given up", lost=losses, **keys_of(delivery.task.fence)
        )
        self._slots.release()
        self._ledger.begin(delivery.place, delivery)
        delivery.finished(self._config.way.instead(delivery.task, outcomes.workers_lost(delivery.task, losses)))

    def _bury(self, record: TaskRecord, error: DataError) -> None:
        """To the dead letters, as it came; the partition moves on."""
        _log.warning("a record is no task", queue=self._config.queue, reason=error.reason, error=str(error))
        self._config.way.metrics.dead_letters[error.reason].inc()
        letter = DeadLetter(
            topic=self._config.topic,
            partition=record.partition,
            offset=record.offset,
            key=record.key,
            value=record.value,
            reason=error.reason,
            error=str(error),
            headers=record.headers,
        )
        size = f"{error}; the value of {len(record.value or b''):,} bytes does not fit"
        short = msgspec.structs.replace(letter, value=None, error=size, headers=())
        write = self._config.letters.dead_letter
        place = self._ledger.take(record.partition, record.offset)
        LetterDelivery(write(letter), write(short), place, self._config.way)

    # -- ownership (from within poll and close) -------------------------------------------------

    def assigned(self, positions: Mapping[int, TaskPosition]) -> None:
        """Begin to count these partitions."""
        for partition, position in positions.items():
            self._ledger.open(partition, position)
            self._forget_doubts(partition)
        self._paused -= positions.keys()

    def revoked(self, partitions: frozenset[int]) -> None:
        """Commit past what goes on running here (protocol 27), unless this worker is about to end."""
        self._let_go(partitions)
        if self._ending or self._leaving.is_set():
            self._ledger.touch(partitions)
            positions = self._ledger.due(partitions, handed_over=True)
        else:
            running = self._ledger.running(partitions)
            self._executor.announce([each.task.fence for each in running if isinstance(each, TopicDelivery)])
            self._ledger.wait_reported(partitions, HANDOVER_S)
            positions = self._ledger.passing(partitions)
        if positions:
            self._source.commit(positions, wait=True)
        self._ledger.drop(partitions)

    def lost(self, partitions: frozenset[int]) -> None:
        """Commit nothing; what runs goes on, and the first result that is recorded wins."""
        self._let_go(partitions)
        self._ledger.drop(partitions)

    def uncommitted(self, partitions: frozenset[int]) -> None:
        """Try the commit again with the next one."""
        self._ledger.touch(partitions & self._ledger.partitions)

    def _let_go(self, partitions: frozenset[int]) -> None:
        self._held = [record for record in self._held if record.partition not in partitions]
        self._paused -= partitions
        for partition in partitions:
            self._forget_doubts(partition)

    def _forget_doubts(self, partition: int) -> None:
        self._doubtful.pop(partition, None)
        self._suspects.pop(partition, None)
