"""The worker's loop over a task log in memory: commits after acknowledgements, pauses, rebalances, the drain."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from support import until
from worker_rigs import MemoryTaskLog, task_json

from ductor_stream import App
from ductor_stream.engine.ids import Fence
from ductor_stream.errors import InvalidConfig
from ductor_stream.ports import Outgoing, TaskLog, TaskPosition, Undeliverable
from ductor_stream.protocol.topics import Topics
from ductor_stream.protocol.worker import WorkerCodec
from ductor_stream.telemetry.metrics import Metrics
from ductor_stream.worker.clock import MachineClock
from ductor_stream.worker.executor import Executor
from ductor_stream.worker.local import LocalWorker
from ductor_stream.worker.service import Ending, WorkerConfig, WorkerService
from ductor_stream.worker.vigil import ExecutorConfig
from ductor_stream.worker.window import Window

TOPICS = Topics("t")


class Running:
    """A service in a thread, and the steps' gates."""

    def __init__(self, log: MemoryTaskLog, *, concurrency: int = 4, grace_s: float = 10.0, queues: tuple[str, ...] = ("default",)) -> None:  # fmt: skip
        self.log = log
        self.ran: list[Any] = []
        self.gates: dict[int, threading.Event] = {n: threading.Event() for n in range(20)}
        self.metrics = Metrics()
        clock = MachineClock()
        self.executor = Executor(ExecutorConfig(self._app().steps, "w", clock, self.metrics, WorkerCodec()))
        config = WorkerConfig(
            queues=queues,
            concurrency=concurrency,
            topics=TOPICS,
            clock=clock,
            metrics=self.metrics,
            grace_s=grace_s,
        )
        self.service = WorkerService(config, log, self.executor)
        self.ending: Ending | BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _app(self) -> App:
        app = App("t")

        @app.step
        async def quick(n: int) -> int:
            self.ran.append(n)
            return n

        @app.step
        def gated(n: int) -> int:
            self.ran.append(n)
            self.gates[n].wait(30)
            return n

        @app.step
        async def waits(n: int) -> int:
            self.ran.append(n)
            await asyncio.Event().wait()
            return n

        return app

    def _run(self) -> None:
        try:
            self.ending = self.service.run()
        except BaseException as error:  # noqa: BLE001 (looked at by the test)
            self.ending = error

    def start(self) -> None:
        self._thread.start()
        until(lambda: self.source.ownership)
        until(lambda: "the worker is starting" not in self.service.problems())

    def join(self) -> None:
        self.service.stop()
        for gate in self.gates.values():
            gate.set()
        self._thread.join(30)
        assert not self._thread.is_alive()

    @property
    def source(self) -> Any:
        return self.log.sources["default"]

    def assign(self, *partitions: int) -> None:
        self.source.change("assigned", *partitions)
        until(lambda: set(partitions) <= self.source.positions.keys())

    def revoke(self, *partitions: int, how: str = "revoked") -> None:
        self.source.change(how, *partitions)
        until(lambda: not set(partitions) & self.source.positions.keys())

    def committed(self, partition: int = 0) -> int | None:
        return self.log.committed.get(("default", partition), TaskPosition(None)).offset


Start = Callable[..., Running]


@pytest.fixture
def start() -> Iterator[Start]:
    made: list[Running] = []

    def begin(log: MemoryTaskLog | None = None, **options: Any) -> Running:
        running = Running(log or MemoryTaskLog(), **options)
        made.append(running)
        running.start()
        return running

    yield begin
    for running in made:
        running.join()


def test_the_fake_fits_the_port() -> None:
    log: TaskLog = MemoryTaskLog()
    assert log.problem() == ""


def test_tasks_are_run_reported_and_committed(start: Start) -> None:
    w = start()
    w.assign(0, 1)
    for n in range(20):
        w.log.append("default", task_json("quick", n, node_id=str(n)), partition=n % 2)
    until(lambda: (w.committed(0), w.committed(1)) == (10, 10))
    assert sorted(r["output"] for r in w.log.results()) == list(range(20))
    assert w.service.problems() == []


def test_an_offset_is_committed_only_after_the_acknowledgement_of_its_result(start: Start) -> None:
    w = start()
    w.assign(0)
    w.log.hold = True
    w.log.append("default", task_json("quick", 1))
    until(lambda: w.log.results())
    polls = w.source.polls
    until(lambda: w.source.polls > polls + 3, what="some more turns of the loop")
    assert w.committed() in (None, 0)
    w.log.release()
    until(lambda: w.committed() == 1)


@pytest.mark.moves("ductor_worker_skipped")
def test_what_is_done_behind_a_slow_attempt_is_not_run_again_after_a_restart(start: Start) -> None:
    log = MemoryTaskLog()
    first = start(log)
    first.assign(0)
    log.append("default", task_json("gated", 0, node_id="slow"))
    for n in range(1, 6):
        log.append("default", task_json("quick", n, node_id=str(n)))
    until(lambda: log.committed.get(("default", 0)) and log.committed["default", 0].metadata)
    until(lambda: Window.opened(0, log.committed["default", 0].metadata).runs == [(1, 6)])
    killed = dict(log.committed)

    second_log = MemoryTaskLog()
    second_log.committed = killed
    for record in log.records("default", 0):
        second_log.append("default", record.value or b"")
    second = start(second_log)
    second.assign(0)
    until(lambda: second.ran == [0])
    second.gates[0].set()
    until(lambda: second.committed() == 6)
    assert second.ran == [0]
    assert second.metrics.worker_skipped["default"]._value.get() == 5


def test_no_more_is_taken_than_there_are_slots_and_polling_goes_on(start: Start) -> None:
    w = start(concurrency=2)
    w.assign(0)
    for n in range(5):
        w.log.append("default", task_json("gated", n, node_id=str(n)))
    until(lambda: len(w.ran) == 2)
    until(lambda: w.source.paused == {0})
    polls = w.source.polls
    until(lambda: w.source.polls > polls + 3, what="polling while all slots are taken")
    assert sorted(w.ran) == [0, 1]
    w.gates[0].set()
    until(lambda: len(w.ran) == 3)
    w.assign(1)
    for gate in w.gates.values():
        gate.set()
    until(lambda: w.committed() == 5)
    assert sorted(w.ran) == [0, 1, 2, 3, 4]


def test_a_rebalance_commits_past_what_goes_on_running_here_and_beats_for_it(start: Start) -> None:
    w = start(concurrency=2)
    w.assign(0)
    for n in range(4):
        w.log.append("default", task_json("gated", n, node_id=str(n)))
    until(lambda: len(w.ran) == 2)
    w.revoke(0)
    assert w.committed() == 2, "the two that run here are passed, the others are somebody else's"
    assert len(w.log.results("attempt.heartbeat")) == 2
    for gate in w.gates.values():
        gate.set()
    until(lambda: len(w.log.results()) == 2)
    assert sorted(w.ran) == [0, 1]
    assert w.committed() == 2


def test_a_partition_that_comes_back_does_not_run_what_still_runs(start: Start) -> None:
    w = start(concurrency=3)
    w.assign(0)
    for n in range(2):
        w.log.append("default", task_json("gated", n, node_id=str(n)))
    until(lambda: len(w.ran) == 2)
    w.revoke(0)
    w.assign(0)
    w.log.append("default", task_json("quick", 7, node_id="7"))
    until(lambda: w.committed() == 3)
    for gate in w.gates.values():
        gate.set()
    until(lambda: len(w.log.results()) == 3)
    assert sorted(w.ran) == [0, 1, 7]


def test_what_nobody_has_heard_of_is_not_passed_when_a_partition_goes(start: Start) -> None:
    """Protocol 27, R5: without a heartbeat at the broker nobody would miss the attempt if this process died."""
    w = start(concurrency=3)
    w.assign(0)
    w.log.append("default", task_json("gated", 0, node_id="0"))
    w.log.append("default", task_json("gated", 1, node_id="1"))
    until(lambda: sorted(w.ran) == [0, 1])
    w.log.refuse = [Undeliverable(Outgoing("x", b"", b""), "timed out", False)]
    w.revoke(0)
    until(lambda: w.log.results("attempt.heartbeat"))
    position = w.log.committed["default", 0]
    heard = int(w.log.results("attempt.heartbeat")[0]["node_id"])
    assert Window.opened(position.offset or 0, position.metadata).is_done(heard)
    assert not Window.opened(position.offset or 0, position.metadata).is_done(1 - heard)
    for gate in w.gates.values():
        gate.set()
    until(lambda: len(w.log.results()) == 2)


def test_what_is_about_to_be_abandoned_is_not_passed_when_a_partition_goes(start: Start) -> None:
    """Of an attempt that nobody will report others have to hear by its task, and not by its silence."""
    w = start()
    w.assign(0)
    w.log.append("default", task_json("gated", 0))
    until(lambda: w.ran == [0])
    for intake in w.service._intakes:
        intake.ending()
    w.revoke(0)
    assert not w.committed()
    assert not w.log.results("attempt.heartbeat")


def test_a_lost_partition_is_not_committed_and_what_comes_again_joins_what_runs(start: Start) -> None:
    w = start()
    w.assign(0)
    w.log.append("default", task_json("gated", 0))
    until(lambda: w.ran == [0])
    w.revoke(0, how="lost")
    assert w.committed() is None or w.committed() == 0
    w.assign(0)
    until(lambda: w.source.positions[0] == 1, what="the redelivery")
    w.gates[0].set()
    until(lambda: w.committed() == 1)
    assert w.ran == [0]


def test_a_drain_finishes_what_runs_and_leaves_the_rest(start: Start) -> None:
    w = start(concurrency=2)
    w.assign(0)
    for n in range(4):
        w.log.append("default", task_json("gated", n, node_id=str(n)))
    until(lambda: len(w.ran) == 2)
    w.service.stop()
    until(lambda: "the worker is draining" in w.service.problems())
    assert w.ending is None
    for gate in w.gates.values():
        gate.set()
    until(lambda: w.ending)
    assert w.ending == "stopped"
    assert sorted(w.ran) == [0, 1]
    assert w.committed() == 2
    assert w.log.closed
    assert w.source.closed


def test_the_last_commit_is_tried_until_it_is_taken(start: Start) -> None:
    """Protocol 27: a rebalance refuses commits; what was done must not be done again for a worker that ends in order."""
    w = start()
    w.assign(0)
    w.log.append("default", task_json("quick", 7))
    until(lambda: w.committed() == 1)
    w.log.refuse_commits = True
    w.log.append("default", task_json("quick", 8))
    until(lambda: len(w.log.results()) == 2)
    refused = w.source.polls
    w.service.stop()
    until(lambda: "the worker is stopped" in w.service.problems())
    until(lambda: w.source.polls > refused + 2, what="the rebalance being followed")
    assert w.ending is None
    w.log.refuse_commits = False
    until(lambda: w.ending)
    assert w.committed() == 2


def test_what_outlasts_the_grace_is_interrupted_and_left_uncommitted(start: Start) -> None:
    w = start(concurrency=3, grace_s=0.2)
    w.assign(0)
    w.log.append("default", task_json("waits", 0, node_id="0"))
    w.log.append("default", task_json("quick", 1, node_id="1"))
    until(lambda: len(w.log.results()) == 1)
    w.service.stop()
    until(lambda: w.ending)
    assert [r["output"] for r in w.log.results()] == [1]
    position = w.log.committed["default", 0]
    assert position.offset == 0
    assert Window.opened(0, position.metadata).runs == [(1, 2)]


def test_undecodable_tasks_go_to_the_dead_letters_and_the_partition_moves_on(start: Start) -> None:
    w = start()
    w.assign(0)
    bad = [b"\xff\xfe", b'{"type":"task"}', b'{"type":"nonsense"}']
    for value in bad:
        w.log.append("default", value)
    w.log.append("default", task_json("quick", 1), key=None)
    w.log.append("default", task_json("quick", 9))
    until(lambda: w.committed() == 5)
    letters = w.log.letters(TOPICS.dead_letters)
    assert [letter.value for letter in letters] == [*bad, task_json("quick", 1)]
    headers = dict(letters[0].headers)
    assert headers["ductor-reason"] == b"undecodable"
    assert headers["ductor-source-topic"] == b"ductor.t.tasks.default"
    assert (headers["ductor-source-partition"], headers["ductor-source-offset"]) == (b"0", b"0")
    assert w.ran == [9]


def test_a_dead_letter_that_does_not_fit_goes_without_its_value(start: Start) -> None:
    w = start()
    w.assign(0)
    w.log.refuse = [Undeliverable(Outgoing("x", b"", b""), "too large", True)]
    w.log.append("default", b"\xff" * 100)
    until(lambda: w.committed() == 1)
    (letter,) = w.log.letters(TOPICS.dead_letters)
    assert letter.value == b""
    assert b"100 bytes" in dict(letter.headers)["ductor-error"]


def test_a_result_that_the_broker_refuses_becomes_a_failed_attempt(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    w = start()
    w.assign(0)
    w.log.refuse = [Undeliverable(Outgoing("x", b"", b""), "Broker: Message size too large", True)]
    w.log.append("default", task_json("quick", 1))
    until(lambda: w.committed() == 1)
    (result,) = w.log.results()
    assert result["error"]["code"] == "output_too_large"
    line = next(vars(record)["ductor"] for record in caplog.records if "refuses a result" in record.message)
    assert (line["run_id"], line["node_id"], line["generation"]) == ("run-1", "1", 1)


def test_a_result_that_was_not_taken_is_sent_again(start: Start) -> None:
    w = start()
    w.assign(0)
    w.log.refuse = [Undeliverable(Outgoing("x", b"", b""), "timed out", False)] * 2
    w.log.append("default", task_json("quick", 1))
    until(lambda: w.committed() == 1)
    assert [r["output"] for r in w.log.results()] == [1]


def test_a_failed_commit_is_tried_again(start: Start) -> None:
    w = start()
    w.assign(0)
    w.log.refuse_commits = True
    w.log.append("default", task_json("quick", 1))
    until(lambda: w.log.results())
    w.log.refuse_commits = False
    until(lambda: w.committed() == 1)


def test_a_stop_from_the_control_topic_reaches_its_attempt(start: Start) -> None:
    w = start()
    w.assign(0)
    w.log.append("default", task_json("waits", 0))
    until(lambda: w.ran == [0])
    w.log.order_stop(Fence("run-1", 1, "1", 1))
    until(lambda: w.committed() == 1)
    assert w.log.results()[0]["outcome"] == "cancelled"


def test_a_topic_that_began_anew_is_read_from_its_beginning(start: Start) -> None:
    w = start()
    w.assign(0)
    for n in range(3):
        w.log.append("default", task_json("quick", n, node_id=str(n)))
    until(lambda: w.committed() == 3)
    w.log.records("default", 0).clear()
    w.source.positions[0] = 0
    w.log.append("default", task_json("quick", 9, node_id="9"))
    until(lambda: w.committed() == 1)
    assert w.ran == [0, 1, 2, 9]


@pytest.mark.moves("ductor_worker_slots_lost")
def test_a_worker_with_over_a_quarter_of_its_slots_lost_drains_and_ends(start: Start) -> None:
    w = start(concurrency=3)
    w.assign(0)
    w.log.append("default", task_json("gated", 0, start_to_close_ms=50))
    until(lambda: w.ending)
    assert w.ending == "exhausted"
    assert w.log.results()[0]["error"]["code"] == "timeout_start_to_close"
    assert w.committed() == 1
    assert any("slots are lost" in problem for problem in w.service.problems())


def test_a_reader_that_fails_ends_the_worker_loudly(start: Start) -> None:
    w = start()

    def fail(*_: object) -> Any:
        raise RuntimeError("broken")

    w.source.poll = fail
    until(lambda: w.ending)
    assert isinstance(w.ending, RuntimeError)


def test_through_many_rebalances_every_task_runs_once_and_everything_is_committed(start: Start) -> None:
    w = start(concurrency=8)
    w.assign(0, 1)
    for n in range(600):
        w.log.append("default", task_json("quick", n, node_id=str(n)), partition=n % 2)
        if n % 60 == 30:
            w.revoke(n // 60 % 2)
            w.assign(n // 60 % 2)
    until(lambda: (w.committed(0), w.committed(1)) == (300, 300))
    assert sorted(w.ran) == list(range(600))
    assert sorted(r["output"] for r in w.log.results()) == list(range(600))


def test_attempts_of_the_same_process_share_the_slots_and_are_waited_for_by_the_drain(start: Start) -> None:
    w = start(concurrency=2)
    w.assign(0)
    local = LocalWorker(w.executor, w.service.slots, WorkerCodec(), w.service.outlet.post)
    for n in range(2):
        assert local.reserve("default", "gated")
        local.run_all([(task_json("gated", n, node_id=str(n)), b"run-1", [])])
    w.log.append("default", task_json("gated", 2, node_id="2"))
    until(lambda: w.source.paused == {0})
    assert sorted(w.ran) == [0, 1]
    local.divert([b"run-1"])
    w.service.stop()
    until(lambda: "the worker is draining" in w.service.problems())
    w.gates[0].set()
    until(lambda: len(w.log.results()) == 1)
    assert not local.reserve("default", "gated")
    assert w.ending is None
    w.gates[1].set()
    until(lambda: w.ending)
    assert [r["output"] for r in w.log.results()] == [0, 1]
    assert w.committed() in (None, 0), "the task of the topic is left to the next worker"


def test_each_queue_has_its_own_slots(start: Start) -> None:
    w = start(queues=("default", "other"), concurrency=1)
    w.assign(0)
    w.log.sources["other"].change("assigned", 0)
    w.log.append("default", task_json("gated", 0, node_id="0"))
    w.log.append("other", task_json("quick", 1, node_id="1"))
    until(lambda: sorted(w.ran) == [0, 1])
    until(lambda: w.log.results())


def test_a_worker_without_queues_or_slots_is_refused() -> None:
    clock = MachineClock()
    for queues, concurrency in (((), 1), (("default",), 0)):
        with pytest.raises(InvalidConfig):
            WorkerConfig(queues=queues, concurrency=concurrency, topics=TOPICS, clock=clock, metrics=Metrics())
