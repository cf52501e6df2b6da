"""A task that ends its workers is given up after some (decision 15), and what stands beside it runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from worker_rigs import task_json

from ductor_stream.engine.ids import Fence
from ductor_stream.ports import Delivered, Outgoing, TaskOwnership, TaskPosition, TaskRecord
from ductor_stream.protocol.outbound import Encoder
from ductor_stream.protocol.topics import Topics
from ductor_stream.protocol.worker import Task, WorkerCodec
from ductor_stream.telemetry.metrics import Metrics
from ductor_stream.worker.attempt import Order
from ductor_stream.worker.deliveries import Way
from ductor_stream.worker.intake import Intake, IntakeConfig
from ductor_stream.worker.ledger import Ledger
from ductor_stream.worker.losses import ALONE_S, GIVEN_UP_AT, Careful
from ductor_stream.worker.outcomes import Outcome
from ductor_stream.worker.outlet import Outlet
from ductor_stream.worker.reports import Reports
from ductor_stream.worker.slots import Slots
from ductor_stream.worker.window import decode_losses

TOPICS = Topics("t")


class Clock:
    """One that is moved by hand."""

    def __init__(self, poll_s: float = 0.1) -> None:
        self.s, self.poll_s = 1_000.0, poll_s

    def now(self) -> int:
        return int(self.s * 1000)

    def monotonic(self) -> float:
        return self.s


class Kafka:
    """A task topic with its committed offsets, and all that was reported."""

    def __init__(self, tasks: Mapping[int, list[str]]) -> None:
        self.tasks: dict[int, list[tuple[str, bytes]]] = {}
        for partition, steps in tasks.items():
            ids = [f"{step}-{partition}-{n}" for n, step in enumerate(steps)]
            results = TOPICS.attempt_results
            self.tasks[partition] = [
                (run_id, task_json(step, run_id=run_id, results_topic=results))
                for run_id, step in zip(ids, steps, strict=True)
            ]
        self.committed: dict[int, TaskPosition] = {}
        self.reports: list[dict[str, object]] = []

    def produce(self, record: Outgoing, delivered: Delivered) -> None:
        self.reports.append(msgspec.json.decode(record.value))
        delivered(None)

    def flush(self, timeout: float) -> int:
        return 0

    def failed(self) -> list[object]:
        """Whose attempts were given up, each once, however often that was said: a report is sure once it is committed."""
        return list(dict.fromkeys(report["run_id"] for report in self.reports if report["outcome"] == "failed"))

    def completed(self) -> set[object]:
        return {report["run_id"] for report in self.reports if report["outcome"] == "completed"}

    def left(self) -> int:
        at = {partition: self.committed.get(partition, TaskPosition(0)).offset for partition in self.tasks}
        return sum(len(records) - (at[partition] or 0) for partition, records in self.tasks.items())


class Died(BaseException):
    """The process is gone: nothing of it runs on."""


class Process:
    """One worker process. Steps whose name begins with ``deadly`` end it, ``slow`` ones last, all others end at once."""

    def __init__(self, kafka: Kafka, clock: Clock, slots: int, refuses: bool = False) -> None:
        self.kafka, self.clock, self.refuses = kafka, clock, refuses
        self.reports = Reports("w", WorkerCodec())
        self.begun: list[Task] = []
        self.slow: list[Order] = []
        self.slots = Slots(slots)
        self.slots.wait_free = lambda timeout: self.slots.free > 0  # type: ignore[method-assign]
        way = Way(Ledger(), Outlet(kafka), clock, Metrics(), self.report)  # type: ignore[arg-type]
        config = IntakeConfig(
            "q", TOPICS.tasks("q"), self.slots, way, WorkerCodec(), Encoder(TOPICS), Careful(clock.monotonic)
        )
        self.paused: set[int] = set()
        self.intake = Intake(config, self, self)  # type: ignore[arg-type]
        self.at = {partition: kafka.committed.get(partition, TaskPosition(0)) for partition in kafka.tasks}
        self.next = {partition: position.offset or 0 for partition, position in self.at.items()}
        self.intake.assigned(self.at)

    def report(self, task: Task, outcome: Outcome) -> Outgoing:
        return self.reports.finished(task, 0, outcome, 0)

    # -- the source -------------------------------------------------------------------------

    def subscribe(self, ownership: TaskOwnership) -> None: ...

    def poll(self, timeout: float, limit: int) -> list[TaskRecord]:
        found: list[TaskRecord] = []
        for partition, records in self.kafka.tasks.items():
            while partition not in self.paused and len(found) < limit and self.next[partition] < len(records):
                key, value = records[self.next[partition]]
                found.append(TaskRecord(partition, self.next[partition], key.encode(), value, ()))
                self.next[partition] += 1
        self.clock.s += self.clock.poll_s
        return found

    def pause(self, partitions: Iterable[int]) -> None:
        self.paused |= set(partitions)

    def resume(self, partitions: Iterable[int]) -> None:
        self.paused -= set(partitions)

    def commit(self, positions: Mapping[int, TaskPosition], *, wait: bool) -> bool:
        if wait and self.refuses:
            return False
        self.kafka.committed.update(positions)
        return True

    def problem(self) -> str:
        return ""

    def close(self) -> None: ...

    # -- the executor -------------------------------------------------------------------------

    def submit_all(self, orders: list[Order]) -> None:
        self.begun += [order.task for order in orders]
        if any(order.task.step.startswith("deadly") for order in orders):
            raise Died
        for order in orders:
            if order.task.step.startswith("slow"):
                self.slow.append(order)
            else:
                self.end(order)

    def end(self, order: Order) -> None:
        order.delivery.finished(self.report(order.task, Outcome("completed", b"1")))
        order.slots.release()

    def knows(self, fence: Fence) -> bool:
        return fence in [order.task.fence for order in self.slow]

    def announce(self, fences: list[Fence]) -> None: ...

    def turns(self, number: int) -> None:
        for _ in range(number):
            self.intake.turn()


def live(kafka: Kafka, clock: Clock, slots: int, **options: bool) -> bool:
    """One process, to its death (False) or for six seconds."""
    try:
        Process(kafka, clock, slots, **options).turns(int(6 / clock.poll_s))
    except Died:
        return False
    return True


STEPS = st.lists(st.sampled_from(["quick", "quick", "quick", "deadly"]), max_size=12)


@settings(deadline=None)
@given(st.lists(STEPS, min_size=1, max_size=3), st.integers(1, 20), st.sampled_from([0.01, 0.04, 0.1, 0.3]))
@example([["quick"] * 3 + ["deadly"] + ["quick"] * 2 + ["deadly"]], 3, 0.1)
@example([["quick"] * 6 + ["deadly"]], 1, 0.01)
def test_deadly_tasks_are_given_up_and_all_others_run(partitions: list[list[str]], slots: int, poll_s: float) -> None:
    """However many batches are taken between two commits: what is not written down yet is run, or is lost, again."""
    kafka, clock = Kafka(dict(enumerate(partitions))), Clock(poll_s)
    deadly = sum(step == "deadly" for steps in partitions for step in steps)
    deaths = 0
    while not live(kafka, clock, slots):
        deaths += 1
        assert deaths <= 5 * deadly, "GIVEN_UP_AT, and one that nobody had noted"
    assert kafka.left() == 0
    assert sorted(map(str, kafka.failed())) == sorted(
        f"deadly-{p}-{n}" for p, steps in enumerate(partitions) for n, step in enumerate(steps) if step == "deadly"
    )
    assert len(kafka.completed()) == sum(map(len, partitions)) - deadly


def test_what_is_reported_says_why() -> None:
    kafka, clock = Kafka({0: ["deadly"]}), Clock()
    deaths = 0
    while not live(kafka, clock, 4):
        deaths += 1
    assert deaths == GIVEN_UP_AT
    (report,) = kafka.reports
    error = report["error"]
    assert isinstance(error, dict)
    assert (error["code"], error["retryable"]) == ("worker_lost", True)
    assert "4 workers were lost" in error["message"] and "executor='process'" in error["message"]


def test_quick_neighbours_are_not_blamed_and_slow_ones_that_run_meanwhile_are() -> None:
    """Nobody can tell which of two that run has ended the process; what has ended before, or begins later, has not."""
    kafka, clock = Kafka({0: ["quick", "slow", "quick", "deadly", "slow", "quick"]}), Clock()
    while not live(kafka, clock, 10):
        assert kafka.failed() == []
    assert kafka.failed() == ["slow-0-1", "deadly-0-3"]
    assert kafka.completed() == {"quick-0-0", "quick-0-2", "quick-0-5"}


def test_those_with_losses_begin_one_at_a_time() -> None:
    kafka, clock = Kafka({0: ["slow", "slow"], 1: ["slow"]}), Clock()
    for _ in range(2):
        Process(kafka, clock, 10).turns(3)
    process = Process(kafka, clock, 10)
    process.turns(1)
    assert len(process.begun) == 1
    until = clock.s + ALONE_S - 0.15
    while clock.s < until:
        process.turns(1)
    assert len(process.begun) == 1
    process.end(process.slow.pop())
    process.turns(2)
    assert len(process.begun) == 2, "the first has ended"
    process.turns(12)
    assert len(process.begun) == 3, "the second has run for a second"


@pytest.mark.parametrize("way", ["leaves", "partition goes", "ends"])
def test_what_is_handed_over_is_no_loss(way: str) -> None:
    kafka, clock = Kafka({0: ["slow", "slow"]}), Clock()
    for _ in range(GIVEN_UP_AT + 2):
        process = Process(kafka, clock, 10)
        process.turns(3)
        assert len(process.begun) == 2
        if way == "partition goes":
            process.intake.revoked(frozenset({0}))
        elif way == "ends":
            process.intake.ending()
            process.intake.revoked(frozenset({0}))
        else:
            process.intake.leave()
            process.intake.run()
    assert kafka.committed[0] == TaskPosition(0, "")


def test_a_commit_that_fails_holds_nothing_up() -> None:
    kafka, clock = Kafka({0: ["quick"] * 5}), Clock()
    assert live(kafka, clock, 10, refuses=True)
    assert kafka.left() == 0


def test_who_still_runs_a_task_when_its_partition_comes_back_does_not_give_it_up() -> None:
    kafka, clock = Kafka({0: ["slow"]}), Clock()
    process = Process(kafka, clock, 10)
    for _ in range(GIVEN_UP_AT + 2):
        process.turns(3)
        process.intake.lost(frozenset({0}))
        process.next[0] = 0
        process.intake.assigned(kafka.committed)
    process.turns(3)
    # The executor joins them to the attempt that runs.
    assert (kafka.reports, len(process.slow)) == ([], GIVEN_UP_AT + 3)
    assert [each.task.fence for each in process.slow] == [process.slow[0].task.fence] * (GIVEN_UP_AT + 3)
    position = kafka.committed[0]
    assert decode_losses(position.offset or 0, position.metadata) == [(0, 1, 1)], (
        "nor does the next worker, if this one dies"
    )


def test_losses_of_others_are_kept_when_a_partition_comes_back() -> None:
    """It stalls its worker until the partition is lost, and ends it after it came back: each life counts one (decision 15)."""
    kafka, clock = Kafka({0: ["slow"]}), Clock()
    for deaths in range(1, GIVEN_UP_AT):
        process = Process(kafka, clock, 10)
        process.turns(3)
        process.intake.lost(frozenset({0}))
        process.next[0] = 0
        process.intake.assigned(kafka.committed)
        process.turns(3)
        position = kafka.committed[0]
        assert decode_losses(position.offset or 0, position.metadata) == [(0, 1, deaths)]
        assert kafka.reports == []
    for _ in range(2):
        Process(kafka, clock, 10).turns(3)
    assert kafka.failed() == ["slow-0-0"]


def test_what_waits_of_a_partition_that_goes_while_all_slots_are_full_is_let_go(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The rebalance comes in the middle of a poll that takes nothing: what goes is another worker's."""
    kafka, clock = Kafka({0: ["slow"], 1: ["quick"]}), Clock()
    for _ in range(2):
        process = Process(kafka, clock, 10)
        process.paused = {1}
        process.turns(3)
    process = Process(kafka, clock, 10)
    process.turns(1)
    assert [task.run_id for task in process.begun] == ["slow-0-0"], "alone; the quick one waits"
    poll = process.poll

    def rebalanced(timeout: float, limit: int) -> list[TaskRecord]:
        if limit == 0:
            process.intake.lost(frozenset({1}))
            process.paused.add(1)
        return poll(timeout, limit)

    monkeypatch.setattr(process, "poll", rebalanced)
    monkeypatch.setattr(process.slots, "wait_free", lambda timeout: False)
    process.turns(1)
    monkeypatch.setattr(process, "poll", poll)
    monkeypatch.setattr(process.slots, "wait_free", lambda timeout: True)
    clock.s += ALONE_S
    process.paused.add(1)
    process.turns(5)
    assert [task.run_id for task in process.begun] == ["slow-0-0"]
    assert 1 not in kafka.committed


def test_what_runs_long_before_a_deadly_one_is_not_blamed_for_it() -> None:
    """One slot: it ends in the middle of a turn, which begins the deadly one at once, before the next commit."""
    kafka, clock = Kafka({0: ["slow", "deadly", "quick"]}), Clock()
    deaths = 0
    while True:
        process, began = Process(kafka, clock, 1), clock.s

        def wait_free(timeout: float, process: Process = process, began: float = began) -> bool:
            if process.slow and clock.s > began + 5:
                process.end(process.slow.pop())
            return process.slots.free > 0

        process.slots.wait_free = wait_free  # type: ignore[method-assign]
        try:
            process.turns(120)
            break
        except Died:
            deaths += 1
            assert deaths <= GIVEN_UP_AT + 1
    assert (kafka.failed(), kafka.left()) == (["deadly-0-1"], 0)
    assert kafka.completed() == {"slow-0-0", "quick-0-2"}


def test_what_begins_alone_is_alone_among_all_queues_of_its_process() -> None:
    clock = Clock()
    careful = Careful(clock.monotonic)
    runs = True
    assert [careful.verdict(losses, beside=True) for losses in (0, 1, 2, 4)] == ["begin", "begin", "wait", "give up"]
    assert careful.verdict(2, beside=False) == "alone"
    assert careful.verdict(2, beside=False) == "wait", "another queue's thread, before the first has begun"
    careful.begins_alone(lambda: runs)
    assert [careful.verdict(losses, beside=False) for losses in (0, 2, 4)] == ["wait", "wait", "give up"]
    runs = False
    assert careful.verdict(0, beside=False) == "begin"
    assert careful.verdict(3, beside=False) == "alone"
    careful.begins_alone(lambda: True)
    clock.s += ALONE_S
    assert careful.verdict(0, beside=False) == "begin"
