"""The worker as a service: an intake for each queue, the stops, the drain.

Delivery: a task's offset is committed after the broker has acknowledged its result, so that every task runs at
least once; what was done behind a slow attempt is not run again (protocol 27).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal

import msgspec

from ductor_stream.errors import DataError, InvalidConfig, TransientError
from ductor_stream.ports import TaskLog
from ductor_stream.protocol.outbound import Encoder
from ductor_stream.protocol.topics import Topics
from ductor_stream.protocol.worker import WorkerCodec
from ductor_stream.telemetry.logs import get_logger
from ductor_stream.telemetry.metrics import Metrics
from ductor_stream.worker.clock import WorkerClock
from ductor_stream.worker.deliveries import Way
from ductor_stream.worker.executor import Executor
from ductor_stream.worker.intake import Intake, IntakeConfig
from ductor_stream.worker.ledger import Ledger
from ductor_stream.worker.losses import Careful
from ductor_stream.worker.outlet import Outlet
from ductor_stream.worker.slots import Slots

_log = get_logger(__name__)

GRACE_S = 25.0
"""How long a drain waits for what runs: below the 30 s after which orchestrators kill."""

LISTEN_S = 0.1
"""How long the service listens for stops before it looks after the rest."""

FLUSH_S = 5.0
"""How long the end waits for acknowledgements of results that are on their way."""

FIRST_RETRY_S, LONGEST_RETRY_S = 1.0, 15.0
"""Pauses between tries to open the resources, doubled each time."""

Ending = Literal["stopped", "exhausted"]


class WorkerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker is. ``concurrency`` holds for each queue; ``codec`` makes one for each thread that reads."""

    queues: Sequence[str]
    concurrency: int
    topics: Topics
    clock: WorkerClock
    metrics: Metrics
    codec: Callable[[], WorkerCodec] = WorkerCodec
    grace_s: float = GRACE_S

    def __post_init__(self) -> None:
        if self.concurrency < 1:
            raise InvalidConfig(f"concurrency is {self.concurrency}; a worker needs at least one slot")
        if not self.queues:
            raise InvalidConfig("a worker needs at least one queue")


class WorkerService:
    """Runs the tasks of some queues until it is stopped, or until too many slots are lost.

    ``run`` blocks; ``stop`` and ``problems`` may be called from any thread (``stop`` from a signal handler too).
    """

    def __init__(self, config: WorkerConfig, task_log: TaskLog, executor: Executor) -> None:
        self._config = config
        self._task_log = task_log
        self._executor = executor
        self._codec = config.codec()
        self.outlet = Outlet(task_log)
        """Where results go that travel by topic."""
        self.slots = {queue: Slots(config.concurrency) for queue in dict.fromkeys(config.queues)}
        """The slots of each queue; attempts of the same process share them."""
        self._stopping = False
        self._state = "starting"
        self._not_opened = ""
        self._failed: list[BaseException] = []
        self._careful = Careful(config.clock.monotonic)
        self._intakes = [self._intake(queue, slots) for queue, slots in self.slots.items()]
        self._threads: list[threading.Thread] = []

    # -- from outside -----------------------------------------------------------------------

    def stop(self) -> None:
        """Begin to drain: take nothing more, finish what runs within the grace, leave. Returns at once."""
        # Nothing but an assignment: a signal handler that takes a lock can wait for its own thread.
        self._stopping = True

    def problems(self) -> list[str]:
        """Sentences about why this worker does not work as it should; empty when it is ready."""
        found = [self._task_log.problem(), self._not_opened, *self._executor.problems()]
        found += [intake.problem() for intake in self._intakes]
        found += [_lost(queue, slots) for queue, slots in self.slots.items()]
        if self._state != "running":
            found.append(f"the worker is {self._state}")
        return [sentence for sentence in dict.fromkeys(found) if sentence]

    def run(self) -> Ending:
        """Work until ``stop``; ``exhausted`` says that only a new process helps. Raises what an intake died of."""
        try:
            if self._open_resources():
                self._begin()
                self._work()
            return "exhausted" if self._exhausted() else "stopped"
        finally:
            self._end()
            if self._failed:
                raise self._failed[0]

    # -- inside -----------------------------------------------------------------------------

    def _open_resources(self) -> bool:
        """Open them before the first poll, however often it takes; False when stopped meanwhile."""
        pause = FIRST_RETRY_S
        while not self._stopping:
            try:
                self._executor.open()
            except Exception as error:  # noqa: BLE001 (whatever a resource raises: it may be there later)
                self._not_opened = f"a resource cannot be opened: {type(error).__name__}: {error}"
                _log.exception("a resource cannot be opened", again_in_s=pause)
                self._rest(pause)
                pause = min(2 * pause, LONGEST_RETRY_S)
            else:
                self._not_opened = ""
                return True
        return False

    def _rest(self, seconds: float) -> None:
        until = self._config.clock.monotonic() + seconds
        while not self._stopping and self._config.clock.monotonic() < until:
            self._round()

    def _begin(self) -> None:
        for queue, slots in self.slots.items():
            self._config.metrics.worker_slots[queue].set(slots.total)
        for intake, queue in zip(self._intakes, self.slots, strict=True):
            thread = threading.Thread(target=partial(self._read, intake), name=f"ductor-queue-{queue}", daemon=True)
            thread.start()
            self._threads.append(thread)
        self._state = "running"

    def _read(self, intake: Intake) -> None:
        try:
            intake.run()
        except BaseException as error:  # noqa: BLE001 (raised again by run)
            _log.exception("the reading of a queue has failed")
            self._failed.append(error)
            self.stop()

    def _work(self) -> None:
        while not self._stopping:
            self._round()
            if self._exhausted():
                _log.error("too many slots are lost: this worker drains and ends", lost=self._lost_slots())
                self._stopping = True
        for intake, slots in zip(self._intakes, self.slots.values(), strict=True):
            slots.shut()
            intake.drain()
        self._state = "draining"
        _log.info("draining: nothing more is taken", attempts=self._executor.busy, grace_s=self._config.grace_s)
        deadline = self._config.clock.monotonic() + self._config.grace_s
        while self._busy() and self._config.clock.monotonic() < deadline:
            self._round()

    def _busy(self) -> bool:
        return self._executor.busy > 0 or any(intake.open_places for intake in self._intakes)

    def _round(self) -> None:
        """What is looked after from time to time: stops, results to be sent again, gauges."""
        for record in self._task_log.stops(LISTEN_S):
            try:
                stop = self._codec.decode_stop(record.key, record.value, record.headers)
            except (DataError, TransientError) as error:
                _log.warning("a stop cannot be read", error=str(error))
            else:
                self._executor.stop(stop.fence, stop.reason)
        self.outlet.send_again()
        for queue, slots in self.slots.items():
            self._config.metrics.worker_busy[queue].set(slots.total - slots.free)
            self._config.metrics.worker_slots_lost[queue].set(slots.lost)

    def _end(self) -> None:
        self._state = "stopped"
        left = self._executor.busy
        if left:
            _log.warning("attempts did not end within the grace: others will run them again", attempts=left)
        for intake in self._intakes:
            intake.ending()
        self._executor.abandon("the worker ends")
        self._task_log.flush(FLUSH_S)
        for intake in self._intakes:
            intake.leave()
        for thread in self._threads:
            thread.join()
        self._executor.close()
        self._task_log.close()

    def _exhausted(self) -> bool:
        return any(slots.exhausted for slots in self.slots.values())

    def _lost_slots(self) -> int:
        return sum(slots.lost for slots in self.slots.values())

    def _intake(self, queue: str, slots: Slots) -> Intake:
        config = self._config
        way = Way(Ledger(), self.outlet, config.clock, config.metrics, self._executor.report)
        made = IntakeConfig(
            queue=queue,
            topic=config.topics.tasks(queue),
            slots=slots,
            way=way,
            codec=config.codec(),
            letters=Encoder(config.topics),
            careful=self._careful,
        )
        return Intake(made, self._task_log.source(queue), self._executor)


def _lost(queue: str, slots: Slots) -> str:
    if not slots.exhausted:
        return ""
    return f"queue {queue}: {slots.lost} of {slots.total} slots are lost to steps that do not end after their timeout"
