"""SyncMatch: attempts that a coordinator hands over within its own process (protocol 13).

The slot is reserved before the commit and used after it; results go straight back, until their partition is
given away: then they go by the topic like any other worker's.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from queue import Empty, SimpleQueue

from ductor_stream.errors import InvariantViolation
from ductor_stream.ports import Outgoing
from ductor_stream.protocol.worker import Task, WorkerCodec
from ductor_stream.worker.attempt import Order
from ductor_stream.worker.executor import Executor
from ductor_stream.worker.slots import Slots

Produce = Callable[[Outgoing], None]
"""Sends a record by its topic, at least once."""


class LocalWorker:
    """``ports.LocalWorkers`` over an executor. One thread calls, the coordinator's; results come from any thread.

    Delivery: each task that ``run_all`` takes gives one result, by ``results`` or, once diverted, by ``produce``.
    """

    def __init__(self, executor: Executor, slots: Mapping[str, Slots], codec: WorkerCodec, produce: Produce) -> None:
        self._executor = executor
        self._slots = slots
        self._codec = codec
        self._produce = produce
        self._results: SimpleQueue[list[_Report]] = SimpleQueue()
        self._finished: list[_Report] = []
        self._lock = threading.Lock()
        self._reserved: list[tuple[str, str]] = []
        self._running: set[_LocalDelivery] = set()
        executor.after_reports(self._pass_on)

    # -- for the coordinator ----------------------------------------------------------------

    def reserve(self, queue: str, step: str) -> bool:
        """Keep one slot for an attempt of that step; False when none is free or the step is not known here."""
        slots = self._slots.get(queue)
        if slots is None or not self._executor.can_run(step) or not slots.take():
            return False
        self._reserved.append((queue, step))
        return True

    def cancel_reservation(self, queue: str) -> None:
        """Give a reserved slot back (the commit failed)."""
        place = next((n for n, (reserved, _) in enumerate(self._reserved) if reserved == queue), None)
        if place is None:
            raise InvariantViolation(f"no slot of queue {queue} is reserved")
        del self._reserved[place]
        self._slots[queue].release()

    def run_all(self, tasks: Iterable[tuple[bytes, bytes, Sequence[tuple[str, bytes]]]]) -> None:
        """Execute tasks (JSON form, as on the topic, with key and headers) in reserved slots, handed over together."""
        deliveries: list[_LocalDelivery] = []
        orders: list[Order] = []
        try:
            for task, key, headers in tasks:
                found = self._codec.decode_task(key, task, headers)
                queue = self._use_reservation(found.step)
                delivery = _LocalDelivery(self, found, key)
                deliveries.append(delivery)
                orders.append(Order(found, queue, self._slots[queue], delivery))
        finally:
            with self._lock:
                self._running.update(deliveries)
            self._executor.submit_all(orders)

    def results(self, timeout: float) -> list[tuple[bytes, bytes]]:
        """Finished attempts and heartbeats: (key, JSON value as it would stand on attempt-results).

        Waits at most ``timeout`` seconds for the first one.
        """
        found: list[_Report] = []
        try:
            found += self._results.get(timeout > 0, timeout if timeout > 0 else None)
            while True:
                found += self._results.get_nowait()
        except Empty:
            return [(record.key, record.value) for _, record in found]

    def busy(self) -> int:
        """How many attempts run here now."""
        return len(self._running)

    def divert(self, partition_keys: Iterable[bytes]) -> None:
        """Results of these runs' attempts go by the topic from now on (their partition was given away).

        What was not fetched by ``results`` yet goes there too; the attempts that still run beat at once.
        """
        keys = frozenset(partition_keys)
        waiting: list[_Report] = []
        with self._lock:
            moved = [delivery for delivery in self._running if delivery.key in keys]
            for delivery in moved:
                delivery.by_topic = True
            while not self._results.empty():
                waiting += self._results.get_nowait()
            if stay := [report for report in waiting if report[0].key not in keys]:
                self._results.put(stay)
        for delivery, record in waiting:
            if delivery.key in keys:
                self._produce(record)
        self._executor.announce([delivery.task.fence for delivery in moved])

    # -- inside -----------------------------------------------------------------------------

    def _use_reservation(self, step: str) -> str:
        if not self._reserved:
            raise InvariantViolation(f"a task of step {step} was handed over without a reserved slot")
        # The task does not say its queue; slots are counted, so that any reservation of the step is as good.
        places = (n for n, (_, reserved) in enumerate(self._reserved) if reserved == step)
        queue, _ = self._reserved.pop(next(places, 0))
        return queue

    def _pass_on(self, beats: Sequence[_Report] = ()) -> None:
        """Hand over what has finished since the last time, and heartbeats."""
        with self._lock:
            finished, self._finished = self._finished, []
            self._running.difference_update([delivery for delivery, _ in finished])
            reports = [*beats, *finished]
            if here := [report for report in reports if not report[0].by_topic]:
                self._results.put(here)
        if len(here) < len(reports):
            for delivery, record in reports:
                if delivery.by_topic:
                    self._produce(record)


class _LocalDelivery:
    """The reports about one task that was handed over in process."""

    __slots__ = ("_worker", "by_topic", "key", "task")

    def __init__(self, worker: LocalWorker, task: Task, key: bytes) -> None:
        self._worker = worker
        self.task = task
        self.key = key
        self.by_topic = False

    def beat(self, record: Outgoing) -> None:
        """A heartbeat."""
        self._worker._pass_on([(self, record)])

    def finished(self, record: Outgoing) -> None:
        """The result: handed over with the others of its batch."""
        with self._worker._lock:
            self._worker._finished.append((self, record))


_Report = tuple[_LocalDelivery, Outgoing]
