"""Worker processes of the simulation: the production intake, ledger, deliveries, outlet and reports on memory ports.

Only the executor is another one: threads cannot be scheduled by a seed. What it does is what ``worker/executor.py`` promises.
"""

from __future__ import annotations

import heapq
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ductor_stream.engine.events import Failure
from ductor_stream.engine.ids import Fence
from ductor_stream.ports import Outgoing
from ductor_stream.protocol.outbound import Encoder
from ductor_stream.protocol.worker import Task, WorkerCodec
from ductor_stream.telemetry.metrics import Metrics
from ductor_stream.testing.simulation.gate import Crash
from ductor_stream.testing.simulation.memory_broker import Broker
from ductor_stream.testing.simulation.memory_tasks import MemoryTaskLog, MemoryTaskSource, TaskGates, TaskGroup
from ductor_stream.testing.simulation.workers import Fleet
from ductor_stream.testing.simulation.world import EPOCH_MS, World
from ductor_stream.worker import outcomes
from ductor_stream.worker.attempt import Delivery, Order
from ductor_stream.worker.deliveries import Way
from ductor_stream.worker.intake import Intake, IntakeConfig
from ductor_stream.worker.ledger import Ledger
from ductor_stream.worker.losses import Careful
from ductor_stream.worker.outcomes import Outcome
from ductor_stream.worker.outlet import Outlet
from ductor_stream.worker.reports import Reports
from ductor_stream.worker.slots import Slots

_BEAT_US = 3_000_000
_IDLE_US, _BUSY_US = 5_000_000, 100_000


class _Clock:
    """A worker's clock, which may be off by anything: it decides nothing."""

    def __init__(self, world: World) -> None:
        self._world, self._off_ms = world, world.rng.choice([0, -86_400_000, 3_600_000])

    def now(self) -> int:
        return EPOCH_MS + self._off_ms + self._world.us // 1000

    def monotonic(self) -> float:
        return 1.0 + self._world.us / 1e6


class _Slots(Slots):
    """Nobody waits in real time."""

    def wait_free(self, timeout: float) -> bool:
        return self.free > 0


class _Ledger(Ledger):
    """A rebalance that is held up for results: some of them arrive meanwhile."""

    def __init__(self, process: WorkerProcess) -> None:
        super().__init__()
        self._process = process

    def wait_reported(self, partitions: frozenset[int], timeout: float) -> bool:
        self._process.hurry()
        return True


class _Gates(TaskGates):
    def __init__(self, process: WorkerProcess, world: World) -> None:
        self._process, self._world = process, world

    def call(self, name: str) -> None:
        if self._process.dead or self._world.chance("worker_crash"):
            self._process.dead = True
            raise Crash(self._process.name, name)

    def commits(self) -> bool:
        return not self._world.chance("uncommitted")

    def waited(self) -> None:
        self._world.advance(500_000)


class Attempt:
    """One that runs here, and who waits for it."""

    def __init__(self, task: Task, slots: Slots, outcome: Outcome, delivery: Delivery) -> None:
        self.task, self.slots, self.outcome = task, slots, outcome
        self.deliveries = [delivery]


class SimulatedExecutor:
    """In the place of ``worker.executor.Executor``: runs take virtual time, and end as the seed says."""

    def __init__(self, world: World, fleet: Fleet, clock: _Clock, reports: Reports) -> None:
        self._world, self._fleet, self._clock, self._reports = world, fleet, clock, reports
        self.running: dict[Fence, Attempt] = {}
        self._results: dict[Fence, Outgoing] = {}
        self._stops: dict[Fence, str] = {}
        self._agenda: list[tuple[int, int, bool, Fence]] = []
        self._number = 0

    def submit_all(self, orders: Sequence[Order]) -> None:
        """Run each task, unless it runs here already or its result is remembered."""
        for order in orders:
            fence = order.task.fence
            if (attempt := self.running.get(fence)) is not None:
                attempt.deliveries.append(order.delivery)
                order.slots.release()
            elif (known := self._results.get(fence)) is not None:
                order.delivery.finished(known)
                order.slots.release()
            else:
                self._begin(order)

    def _begin(self, order: Order) -> None:
        task, rng = order.task, self._world.rng
        fence = task.fence
        us, told = self._fleet.execute(_described(task))
        outcome = _outcome(told)
        if fence in self._stops:
            us, outcome = 1_000, outcomes.cancelled(self._stops[fence])
        self.running[fence] = Attempt(task, order.slots, outcome, order.delivery)
        for at in range(rng.choice([0, 1_000_000]), us, _BEAT_US):
            self._plan(at, False, fence)
        self._plan(us, True, fence)

    def announce(self, fences: Iterable[Fence]) -> None:
        """Beat now for these."""
        for fence in fences:
            if fence in self.running:
                self._beat(fence)

    def knows(self, fence: Fence) -> bool:
        """Whether the attempt runs here, or its result is remembered."""
        return fence in self.running or fence in self._results

    def stop(self, fence: Fence, reason: str) -> None:
        """Nobody wants this attempt any more."""
        self._stops[fence] = reason
        attempt = self.running.get(fence)
        if attempt is not None:
            attempt.outcome = outcomes.cancelled(reason)
            self._plan(1_000, True, fence)

    def report(self, task: Task, outcome: Outcome) -> Outgoing:
        """The report of a task whose step does not tell."""
        now = self._clock.now()
        return self._reports.finished(task, now, outcome, now)

    def _plan(self, us: int, last: bool, fence: Fence) -> None:
        self._number += 1
        heapq.heappush(self._agenda, (self._world.us + us, self._number, last, fence))

    def next_us(self) -> int | None:
        """When something happens next."""
        return self._agenda[0][0] if self._agenda else None

    def act(self) -> None:
        """Do what is due first."""
        _, _, last, fence = heapq.heappop(self._agenda)
        if fence not in self.running:
            return
        if last:
            self._end(fence)
        else:
            self._beat(fence)

    def _beat(self, fence: Fence) -> None:
        attempt = self.running[fence]
        record = self._reports.heartbeat(attempt.task, self._clock.now(), None)
        for delivery in attempt.deliveries:
            delivery.beat(record)

    def _end(self, fence: Fence) -> None:
        attempt = self.running.pop(fence)
        now = self._clock.now()
        record = self._results[fence] = self._reports.finished(attempt.task, now, attempt.outcome, now)
        for delivery in attempt.deliveries:
            delivery.finished(record)
        attempt.slots.release()


class WorkerProcess:
    """One incarnation of a worker process that serves some queues."""

    def __init__(
        self,
        name: str,
        world: World,
        broker: Broker,
        fleet: Fleet,
        groups: Mapping[str, TaskGroup],
        metrics: Metrics,
    ) -> None:
        self.name, self.dead, self.idle_until = name, False, 0
        self._world, rng = world, world.rng
        self.log = MemoryTaskLog(broker, groups, _Gates(self, world))
        clock, codec = _Clock(world), WorkerCodec(rng.choice(["json", "json", "avro"]))
        self.outlet = Outlet(self.log)
        self.executor = SimulatedExecutor(world, fleet, clock, Reports(name, codec))
        self._codec = codec
        self.sources: list[MemoryTaskSource] = []
        self.intakes: list[Intake] = []
        self._places = 0
        careful = Careful(clock.monotonic)
        for queue in groups:
            way = Way(_Ledger(self), self.outlet, clock, metrics, self.executor.report)
            topic = broker.names.tasks(queue)
            slots = _Slots(rng.choice([1, 3, 20]))
            config = IntakeConfig(queue, topic, slots, way, codec, Encoder(broker.names), careful)
            source = self.log.source(queue)
            intake = Intake(config, source, self.executor)  # type: ignore[arg-type]  # what it uses of an Executor
            source.subscribe(intake)
            self.sources.append(source)
            self.intakes.append(intake)

    # -- steps ------------------------------------------------------------------------------

    def ready(self, us: int) -> bool:
        """Whether it would do something now."""
        if self.dead:
            return False
        due = self.executor.next_us()
        return self.idle_until <= us or (due is not None and due <= us)

    def next_us(self) -> int | None:
        """When it does something by itself."""
        due = self.executor.next_us()
        return None if self.dead else min(self.idle_until, due if due is not None else self.idle_until)

    def wake(self) -> None:
        """A poll would find something."""
        if any(source.news() for source in self.sources):
            self.idle_until = min(self.idle_until, self._world.us + 1_000)

    def act(self) -> None:
        """One step. May raise Crash."""
        due = self.executor.next_us()
        if due is not None and due <= self._world.us:
            self.executor.act()
            return
        for record in self.log.stops(0.0):
            stop = self._codec.decode_stop(record.key, record.value, record.headers)
            self.executor.stop(stop.fence, stop.reason)
        self.outlet.send_again()
        for intake in self.intakes:
            intake.turn()
        places = sum(intake.open_places for intake in self.intakes)
        busy = places != self._places or self.outlet.open > 0
        self._places = places
        self.idle_until = self._world.us + (_BUSY_US if busy else _IDLE_US)

    def deliver(self) -> None:
        """The broker answers for one record, or says that it did not take it."""
        world = self._world
        sent = world.rng.choice(self.log.heads())
        if world.chance("undelivered"):
            self.log.answer(sent, "timed out", lands=world.rng.random() < 0.5)
        else:
            self.log.answer(sent)
        self.idle_until = min(self.idle_until, world.us + _BUSY_US)

    def hurry(self) -> None:
        """While a rebalance is held up: some answers come in time."""
        for _ in range(self._world.rng.randint(0, 5)):
            if self.log.flying and not self.dead and self._world.us >= self._world.log_down_until:
                self.deliver()

    def end(self) -> None:
        """In good order: what is done is committed, what runs is left to others."""
        for intake in self.intakes:
            intake.drain()
            intake.leave()
            intake.run()
        self.dead = True

    def idle(self) -> bool:
        """Whether nothing is under way."""
        return self.dead or not (self.executor.running or self.log.flying or self.outlet.open)


def _described(task: Task) -> dict[str, Any]:
    fence = task.fence
    names = {"run_id": fence.run_id, "execution": fence.execution, "node_id": fence.node_id}
    return {**names, "generation": fence.generation, "idempotency_key": task.idempotency_key}


def _outcome(told: dict[str, Any]) -> Outcome:
    if told["outcome"] == "completed":
        return Outcome("completed", json.dumps(told["output"]).encode())
    error = told["error"]
    failure = Failure(error["code"], error.get("type", "Rejected"), error["message"], error.get("retryable", True))
    return Outcome(told["outcome"], failure=failure)
