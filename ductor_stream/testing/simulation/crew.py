"""The production workers of a world: their processes, their groups, and what may happen to them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial

from ductor_stream.ports import TaskPosition
from ductor_stream.telemetry.metrics import Metrics
from ductor_stream.testing.simulation.checks_tasks import R5TasksNotSwallowed
from ductor_stream.testing.simulation.gate import Crash
from ductor_stream.testing.simulation.memory_broker import Broker
from ductor_stream.testing.simulation.memory_tasks import MemoryTaskLog, MemoryTaskSource, TaskGroup
from ductor_stream.testing.simulation.worker_processes import WorkerProcess
from ductor_stream.testing.simulation.workers import Fleet
from ductor_stream.testing.simulation.world import SESSION_US, World

Later = Callable[[int, Callable[[], None]], None]
"""Does something after so many microseconds."""


class Crew:
    """One to three worker processes, for the queues that no foreign worker serves."""

    def __init__(
        self,
        world: World,
        broker: Broker,
        fleet: Fleet,
        checker: R5TasksNotSwallowed,
        metrics: Metrics,
        later: Later,
        queues: tuple[str, ...],
    ) -> None:
        self._world, self._broker, self._fleet = world, broker, fleet
        self._checker, self._metrics, self._at = checker, metrics, later
        rng = world.rng
        served = [queue for queue in queues if rng.random() < 0.6]
        self.topics = {broker.names.tasks(queue) for queue in served}
        self._groups = {queue: TaskGroup(broker, queue, self._commits) for queue in served}
        self._workers = [self._worker(f"w{number}") for number in range(rng.randint(1, 3) if served else 0)]
        self._orphans: list[MemoryTaskLog] = []

    def wake(self) -> None:
        """A task is in a topic of theirs."""
        for worker in self._workers:
            worker.wake()

    def add_options(self, found: list[Callable[[], None]], us: int) -> None:
        """What may happen now."""
        for worker in self._workers:
            if worker.dead:
                continue
            if worker.ready(us):
                found.append(partial(self._work, worker))
            if worker.log.flying and us >= self._world.log_down_until:
                found.append(worker.deliver)
        for orphan in self._orphans:
            if orphan.flying:
                found.append(partial(_answer_first, orphan))

    def coming(self) -> Iterator[int | None]:
        """When something happens by itself."""
        yield from (worker.next_us() for worker in self._workers)
        if any(worker.log.flying for worker in self._workers):
            yield max(self._world.us + 1, self._world.log_down_until)

    def rests(self) -> bool:
        """Whether nothing is under way, and all tasks are committed as done."""
        if any(log.flying for log in self._orphans) or not all(worker.idle() for worker in self._workers):
            return False
        return not any(group.behind() for group in self._groups.values())

    def _commits(self, source: MemoryTaskSource, positions: Mapping[int, TaskPosition]) -> None:
        worker = next(worker for worker in self._workers if source in worker.sources)
        self._checker.committing_tasks(worker.name, source.group.topic, positions, worker.executor.running)

    def _work(self, worker: WorkerProcess) -> None:
        """One step of a worker process, which may be its last."""
        world = self._world
        try:
            gone = world.rng.choice(["expelled", "ended"]) if world.chance("worker_gone") else ""
            if gone == "expelled":
                world.note(worker.name, "is expelled")
                self._leave_groups(worker)
            elif gone:
                world.note(worker.name, "ends in good order")
                worker.end()
                self._worker_gone(worker)
                return
            worker.act()
        except Crash as crash:
            if crash.process != worker.name:
                raise
            world.note(worker.name, str(crash))
            self._worker_gone(worker)

    def _worker_gone(self, worker: WorkerProcess) -> None:
        rng = self._world.rng
        worker.dead = True
        if rng.random() < 0.5:
            worker.log.flying.clear()
        else:
            self._orphans.append(worker.log)
        self._at(SESSION_US if rng.random() < 0.7 else 0, lambda: self._leave_groups(worker))
        self._at(rng.randint(0, 8_000_000), lambda: self._new_worker(worker))

    def _leave_groups(self, worker: WorkerProcess) -> None:
        for source in worker.sources:
            source.group.leave(source)

    def _new_worker(self, old: WorkerProcess) -> None:
        self._workers[self._workers.index(old)] = self._worker(old.name)

    def _worker(self, name: str) -> WorkerProcess:
        return WorkerProcess(name, self._world, self._broker, self._fleet, self._groups, self._metrics)


def _answer_first(orphan: MemoryTaskLog) -> None:
    orphan.answer(orphan.heads()[0])
