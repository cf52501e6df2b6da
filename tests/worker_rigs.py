"""For tests of the worker: tasks by hand, a task log in memory, an executor that is closed again."""

from __future__ import annotations

import threading
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import msgspec

from ductor_stream import App
from ductor_stream.engine.ids import Fence, idempotency_key
from ductor_stream.ports import Delivered, Outgoing, TaskOwnership, TaskPosition, TaskRecord, Undeliverable
from ductor_stream.protocol.worker import Task, WorkerCodec, decode_task
from ductor_stream.telemetry.metrics import Metrics
from ductor_stream.worker.attempt import Order
from ductor_stream.worker.clock import MachineClock, WorkerClock
from ductor_stream.worker.executor import Executor
from ductor_stream.worker.slots import Slots
from ductor_stream.worker.vigil import ExecutorConfig

RESULTS = "ductor.t.attempt-results"


def task_json(step: str, *arguments: Any, run_id: str = "run-1", node_id: str = "1", **fields: Any) -> bytes:
    """A task as a coordinator writes it, by the page of the wire alone."""
    body: dict[str, Any] = {
        "type": "task",
        "run_id": run_id,
        "execution": 1,
        "node_id": node_id,
        "generation": 1,
        "attempt": 1,
        "step": step,
        "input": list(arguments),
        "idempotency_key": idempotency_key("t", run_id, 1, node_id),
        "start_to_close_ms": 30_000,
        "schedule_to_start_ms": None,
        "deadline_at": None,
        "heartbeat_timeout_ms": 10_000,
        "heartbeat_details": None,
        "requires": [],
        "results_topic": RESULTS,
    }
    return msgspec.json.encode(body | fields)


def task_of(step: str, *arguments: Any, run_id: str = "run-1", **fields: Any) -> Task:
    """The same, decoded."""
    return decode_task(run_id.encode(), task_json(step, *arguments, run_id=run_id, **fields), [])


class Reported:
    """A delivery that remembers what it was told."""

    def __init__(self) -> None:
        self.beats: list[dict[str, Any]] = []
        self.results: list[dict[str, Any]] = []

    def beat(self, record: Outgoing) -> None:
        self.beats.append(msgspec.json.decode(record.value))

    def finished(self, record: Outgoing) -> None:
        self.results.append(msgspec.json.decode(record.value))

    @property
    def result(self) -> dict[str, Any] | None:
        return self.results[0] if self.results else None


class Bench:
    """An executor with the steps of an app, some slots, and a short way to run something."""

    def __init__(self, app: App, *, slots: int = 8, clock: WorkerClock | None = None) -> None:
        self.metrics = Metrics()
        clock = clock or MachineClock()
        self.executor = Executor(ExecutorConfig(app.steps, "bench", clock, self.metrics, WorkerCodec()))
        self.slots = Slots(slots)

    def submit(self, task: Task) -> Reported:
        """Run a task in a slot of its own."""
        assert self.slots.take()
        delivery = Reported()
        self.executor.submit(Order(task, "default", self.slots, delivery))
        return delivery

    def run(self, step: str, *arguments: Any, **fields: Any) -> Reported:
        """The same by the step's name."""
        return self.submit(task_of(step, *arguments, **fields))


@contextmanager
def bench(app: App, *, slots: int = 8, clock: WorkerClock | None = None) -> Iterator[Bench]:
    """An opened executor."""
    made = Bench(app, slots=slots, clock=clock)
    made.executor.open()
    try:
        yield made
    finally:
        made.executor.close()


class MemorySource:
    """One queue of a ``MemoryTaskLog``: the test assigns and revokes, which takes effect within ``poll``."""

    def __init__(self, log: MemoryTaskLog, queue: str) -> None:
        self._log = log
        self.queue = queue
        self.ownership: TaskOwnership | None = None
        self.paused: set[int] = set()
        self.positions: dict[int, int] = {}
        self.closed = False
        self.polls = 0
        self._changes: deque[tuple[str, frozenset[int]]] = deque()

    def subscribe(self, ownership: TaskOwnership) -> None:
        self.ownership = ownership

    def change(self, what: str, *partitions: int) -> None:
        """``assigned``, ``revoked`` or ``lost``, heard with the next poll."""
        self._changes.append((what, frozenset(partitions)))

    def poll(self, timeout: float, limit: int) -> list[TaskRecord]:
        self.polls += 1
        while self._changes:
            self._hear(*self._changes.popleft())
        with self._log.changed:
            self._log.changed.wait_for(lambda: limit and self._there(), timeout)
            return self._fetch(limit)

    def _there(self) -> bool:
        return bool(self._changes) or any(
            len(self._log.records(self.queue, p)) > at for p, at in self.positions.items() if p not in self.paused
        )

    def _fetch(self, limit: int) -> list[TaskRecord]:
        found: list[TaskRecord] = []
        for partition in sorted(self.positions.keys() - self.paused):
            at = self.positions[partition]
            new = self._log.records(self.queue, partition)[at : at + limit - len(found)]
            self.positions[partition] += len(new)
            found += new
        return found

    def _hear(self, what: str, partitions: frozenset[int]) -> None:
        assert self.ownership is not None
        if what == "assigned":
            committed = {p: self._log.committed.get((self.queue, p), TaskPosition(None)) for p in partitions}
            self.ownership.assigned(committed)
            for partition, position in committed.items():
                self.positions[partition] = position.offset or 0
        else:
            getattr(self.ownership, what)(partitions)
            for partition in partitions:
                self.positions.pop(partition, None)

    def pause(self, partitions: Iterable[int]) -> None:
        self.paused |= set(partitions)

    def resume(self, partitions: Iterable[int]) -> None:
        self.paused -= set(partitions)

    def commit(self, positions: Mapping[int, TaskPosition], *, wait: bool) -> bool:
        if self._log.refuse_commits:
            return False
        for partition, position in positions.items():
            assert partition in self.positions, "a commit of a partition that is not ours"
            self._log.committed[self.queue, partition] = position
        return True

    def problem(self) -> str:
        return ""

    def close(self) -> None:
        self.closed = True
        if self.positions:
            self._hear("revoked", frozenset(self.positions))


class MemoryTaskLog:
    """``ports.TaskLog`` in memory. ``hold`` keeps acknowledgements back until ``release``."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.sources: dict[str, MemorySource] = {}
        self.committed: dict[tuple[str, int], TaskPosition] = {}
        self.produced: list[Outgoing] = []
        self.refuse_commits = False
        self.refuse: list[Undeliverable] = []
        self.hold = False
        self.closed = False
        self._held: list[Delivered] = []
        self._records: dict[tuple[str, int], list[TaskRecord]] = defaultdict(list)
        self._control: deque[TaskRecord] = deque()

    # -- what a test does -------------------------------------------------------------------

    def append(self, queue: str, value: bytes, *, key: bytes | None = b"run-1", partition: int = 0) -> int:
        """One more record on the queue's topic; returns its offset."""
        with self.changed:
            log = self._records[queue, partition]
            log.append(TaskRecord(partition, len(log), key, value))
            self.changed.notify_all()
            return len(log) - 1

    def order_stop(self, fence: Fence, reason: str = "run cancelled") -> None:
        """One more record on attempt-control."""
        body = {"type": "attempt.stop", "reason": reason, **msgspec.structs.asdict(fence)}
        self._control.append(TaskRecord(0, 0, fence.run_id.encode(), msgspec.json.encode(body)))

    def release(self) -> None:
        """Acknowledge what was held back, and what comes from now on."""
        self.hold = False
        while self._held:
            self._held.pop(0)(None)

    def records(self, queue: str, partition: int) -> list[TaskRecord]:
        return self._records[queue, partition]

    def results(self, kind: str = "attempt.finished") -> list[dict[str, Any]]:
        """What was produced to the results topic."""
        decoded = [msgspec.json.decode(record.value) for record in self.produced if record.topic == RESULTS]
        return [body for body in decoded if body["type"] == kind]

    def letters(self, topic: str) -> list[Outgoing]:
        return [record for record in self.produced if record.topic == topic]

    # -- ports.TaskLog ------------------------------------------------------------------------

    def source(self, queue: str) -> MemorySource:
        self.sources[queue] = MemorySource(self, queue)
        return self.sources[queue]

    def produce(self, record: Outgoing, delivered: Delivered) -> None:
        if self.refuse:
            delivered(self.refuse.pop(0))
            return
        self.produced.append(record)
        if self.hold:
            self._held.append(delivered)
        else:
            delivered(None)

    def stops(self, timeout: float) -> list[TaskRecord]:
        with self.changed:
            self.changed.wait_for(lambda: bool(self._control), min(timeout, 0.01))
        found = list(self._control)
        self._control.clear()
        return found

    def problem(self) -> str:
        return ""

    def flush(self, timeout: float) -> int:
        return len(self._held)

    def close(self) -> None:
        self.closed = True
