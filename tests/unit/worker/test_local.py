"""SyncMatch: slots are reserved before, results come back in process, or by the topic once diverted."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import msgspec
import pytest
from support import until
from worker_rigs import Bench, bench, task_json

from ductor_stream import App
from ductor_stream.errors import InvariantViolation
from ductor_stream.ports import LocalWorkers, Outgoing
from ductor_stream.protocol.worker import WorkerCodec
from ductor_stream.worker.local import LocalWorker
from ductor_stream.worker.slots import Slots

app = App("t")
gate = threading.Event()


@app.step
async def quick(n: int) -> int:
    return n + 1


@app.step
def waits() -> str:
    gate.wait()
    return "waited"


class Rig:
    def __init__(self, b: Bench) -> None:
        self.bench = b
        self.slots = {"default": Slots(2)}
        self.sent: list[Outgoing] = []
        self.worker = LocalWorker(b.executor, self.slots, WorkerCodec(), self.sent.append)

    def collected(self, count: int) -> list[dict[str, object]]:
        found: list[tuple[bytes, bytes]] = []
        until(lambda: found.extend(self.worker.results(0.05)) or len(found) >= count)
        return [msgspec.json.decode(value) for _, value in found]


@pytest.fixture
def rig() -> Iterator[Rig]:
    gate.clear()
    with bench(app) as b:
        yield Rig(b)
        gate.set()


def test_it_fits_the_port(rig: Rig) -> None:
    workers: LocalWorkers = rig.worker
    assert workers.busy() == 0


def test_a_task_runs_in_its_reserved_slot_and_its_result_comes_back(rig: Rig) -> None:
    assert rig.worker.reserve("default", "quick")
    rig.worker.run_all([(task_json("quick", 4), b"run-1", [])])
    assert [r["output"] for r in rig.collected(1)] == [5]
    until(lambda: rig.slots["default"].free == 2)
    assert rig.worker.busy() == 0
    assert rig.worker.results(0.0) == []


def test_slots_are_reserved_only_where_something_can_run(rig: Rig) -> None:
    assert not rig.worker.reserve("elsewhere", "quick")
    assert not rig.worker.reserve("default", "nobody")
    assert rig.worker.reserve("default", "quick")
    assert rig.worker.reserve("default", "waits")
    assert not rig.worker.reserve("default", "quick"), "both slots are taken"
    rig.worker.cancel_reservation("default")
    rig.worker.cancel_reservation("default")
    assert rig.slots["default"].free == 2
    with pytest.raises(InvariantViolation):
        rig.worker.cancel_reservation("default")
    with pytest.raises(InvariantViolation):
        rig.worker.run_all([(task_json("quick", 4), b"run-1", [])])
    rig.slots["default"].shut()
    assert not rig.worker.reserve("default", "quick"), "the worker drains"


def test_nothing_is_reserved_before_the_resources_are_open() -> None:
    rig = Rig(Bench(app))
    assert not rig.worker.reserve("default", "quick")
    rig.bench.executor.open()
    assert rig.worker.reserve("default", "quick")
    rig.bench.executor.close()


def test_diverted_results_go_by_the_topic_also_those_that_were_not_fetched_yet(rig: Rig) -> None:
    for run_id, step, arguments in (("run-1", "quick", [1]), ("run-2", "quick", [2])):
        assert rig.worker.reserve("default", step)
        rig.worker.run_all([(task_json(step, *arguments, run_id=run_id), run_id.encode(), [])])
        until(lambda: rig.worker.busy() == 0 and rig.slots["default"].free == 2)
    rig.worker.divert([b"run-2"])
    assert [msgspec.json.decode(record.value)["output"] for record in rig.sent] == [3]
    assert [r["output"] for r in rig.collected(1)] == [2]


def test_what_runs_when_its_partition_is_given_away_beats_at_once_and_reports_by_the_topic(rig: Rig) -> None:
    for run_id in ("run-1", "run-2"):
        assert rig.worker.reserve("default", "waits")
        rig.worker.run_all([(task_json("waits", run_id=run_id), run_id.encode(), [])])
    assert rig.worker.busy() == 2
    rig.worker.divert([b"run-1"])
    until(lambda: rig.sent)
    assert [msgspec.json.decode(record.value)["type"] for record in rig.sent] == ["attempt.heartbeat"]
    gate.set()
    assert [r["run_id"] for r in rig.collected(1)] == ["run-2"]
    until(lambda: len(rig.sent) == 2)
    assert (rig.sent[1].key, msgspec.json.decode(rig.sent[1].value)["output"]) == (b"run-1", "waited")
    assert rig.sent[1].topic == "ductor.t.attempt-results"
    assert rig.worker.busy() == 0
