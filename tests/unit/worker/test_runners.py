"""Steps that never wait share a task of the loop: nothing of one may be seen by the next, or hold it up."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextvars import ContextVar

import pytest
from prometheus_client import CollectorRegistry, Histogram
from support import until
from worker_rigs import Bench, Reported, bench, task_of

from ductor_stream import App, current_attempt
from ductor_stream.telemetry.batches import observe_all
from ductor_stream.worker.attempt import Order

app = App("t")
mark: ContextVar[str] = ContextVar("mark", default="nothing")
gate = threading.Event()
release: list[asyncio.Event] = []


@app.step
async def sees_and_sets(n: int) -> str:
    seen = mark.get()
    mark.set(f"by {n}")
    return seen


@app.step
async def cancels_itself(n: int) -> int:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    return n


@app.step
async def node(n: int) -> str:
    return current_attempt().node_id


@app.step
async def waits(n: int) -> int:
    mine = asyncio.Event()
    release.append(mine)
    await mine.wait()
    return n


@app.step
async def blocks(n: int) -> int:
    gate.wait()
    return n


@pytest.fixture
def b() -> Iterator[Bench]:
    gate.clear()
    release.clear()
    with bench(app, slots=200) as made:
        yield made
        gate.set()


def _together(b: Bench, *steps: str) -> list[Reported]:
    """Hand them over as one batch; node ids are their places."""
    deliveries = [Reported() for _ in steps]
    assert b.slots.take(len(steps)) == len(steps)
    b.executor.submit_all(
        [
            Order(task_of(step, n, node_id=str(n + 1), heartbeat_timeout_ms=300), "default", b.slots, delivery)
            for n, (step, delivery) in enumerate(zip(steps, deliveries, strict=True))
        ]
    )
    return deliveries


def _outputs(deliveries: list[Reported]) -> list[object]:
    until(lambda: all(each.result for each in deliveries))
    return [each.result["output"] for each in deliveries if each.result]


def test_what_a_step_leaves_in_its_context_is_not_seen_by_the_next(b: Bench) -> None:
    assert _outputs(_together(b, *["sees_and_sets"] * 150)) == ["nothing"] * 150
    until(lambda: b.slots.free == 200)


def test_each_step_sees_its_own_attempt(b: Bench) -> None:
    assert _outputs(_together(b, *["node"] * 150)) == [str(n + 1) for n in range(150)]


def test_a_step_that_cancels_its_task_does_not_cancel_the_next(b: Bench) -> None:
    assert _outputs(_together(b, *["cancels_itself", "node"] * 40))[1::2] == [str(n) for n in range(2, 82, 2)]


def test_a_step_that_waits_holds_up_neither_those_before_it_nor_those_after(b: Bench) -> None:
    deliveries = _together(b, "node", "waits", "node", "waits")
    assert _outputs([deliveries[0], deliveries[2]]) == ["1", "3"]
    until(lambda: len(release) == 2)
    assert not deliveries[1].result
    late = b.run("node", 9, node_id="9")
    assert _outputs([late]) == ["9"]


def test_a_result_is_reported_although_the_step_after_it_blocks_the_loop(b: Bench) -> None:
    deliveries = _together(b, "node", "blocks", "node")
    until(lambda: deliveries[0].result)
    assert not deliveries[1].result
    gate.set()
    assert _outputs(deliveries) == ["1", 1, "3"]


def test_a_batch_of_observations_counts_like_one_by_one() -> None:
    values = [0.0, 0.01, 0.010001, 0.5, 7.0, 7.0, -1.0]
    registry = CollectorRegistry()
    one, all_ = (Histogram(name, "…", buckets=(0.01, 0.5, 5), registry=registry) for name in ("one", "all"))
    for value in values:
        one.observe(value)
    observe_all(all_, values)
    observe_all(all_, [])
    told = [
        {(s.name.partition("_")[2], s.labels.get("le")): s.value for s in each.samples if "created" not in s.name}
        for metric in (one, all_)
        for each in metric.collect()
    ]
    assert told[0] == told[1]
