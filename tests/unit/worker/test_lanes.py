"""A step that blocks the event loop blocks its own lane: others are found another one."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest
from support import until
from worker_rigs import bench

from ductor_stream import App, Use
from ductor_stream.worker import lanes
from ductor_stream.worker.executor import Executor


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lanes, "BLOCKED_S", 0.2)
    monkeypatch.setattr("ductor_stream.worker.pulse.LOOK_AGAIN_S", 0.05)
    monkeypatch.setattr("ductor_stream.worker.attempt.CANCEL_GRACE_S", 0.2)


def test_a_blocked_loop_is_replaced_and_what_it_had_not_begun_runs_elsewhere() -> None:
    app = App("t")
    gate, opened = threading.Event(), []

    @app.resource
    async def pool():  # type: ignore[no-untyped-def]
        opened.append(threading.current_thread())
        yield len(opened)

    @app.step
    async def blocks(*, db: int = Use(pool)) -> int:
        gate.wait()
        return db

    @app.step
    async def quick(*, db: int = Use(pool)) -> int:
        return db

    with bench(app) as b:
        blocked = b.run("blocks", heartbeat_timeout_ms=300)
        stuck = b.run("quick", heartbeat_timeout_ms=300, node_id="2")
        until(lambda: stuck.result)
        assert stuck.result is not None
        assert stuck.result["output"] == 2, "it runs with resources of the loop that it runs on"
        assert len(blocked.beats) > 0, "the blocker is beaten for all the same"
        gate.set()
        until(lambda: blocked.result)
        assert blocked.result is not None
        assert blocked.result["output"] == 1
        until(lambda: not b.executor.problems())


def test_a_step_that_blocks_the_loop_for_ever_is_a_failed_attempt_with_its_line_named(
    caplog: pytest.LogCaptureFixture,
) -> None:
    app = App("t")
    gate = threading.Event()

    @app.step
    async def blocks() -> None:
        gate.wait()

    @app.step
    async def quick() -> str:
        return "quick"

    with bench(app) as b:
        blocked = b.run("blocks", start_to_close_ms=100, heartbeat_timeout_ms=300)
        until(lambda: blocked.result)
        assert blocked.result is not None
        assert blocked.result["error"]["code"] == "timeout_start_to_close"
        assert (b.slots.lost, b.slots.free) == (1, 7)
        later = b.run("quick", heartbeat_timeout_ms=300, node_id="2")
        until(lambda: later.result)
        assert "blocks the event loop" in caplog.text
        assert "test_lanes.py" in caplog.text
        gate.set()
        until(lambda: b.slots.free == 8)
        assert b.slots.lost == 0


def test_a_lane_that_opens_while_the_worker_ends_is_closed_too() -> None:
    app = App("t")
    gate, second = threading.Event(), threading.Event()
    opened: list[int] = []
    closed: list[int] = []

    @app.resource
    async def pool():  # type: ignore[no-untyped-def]
        opened.append(number := len(opened) + 1)
        if number == 2:
            second.set()
            while not gate.is_set():
                await asyncio.sleep(0.001)
        yield number
        closed.append(number)

    @app.step
    async def blocks(*, db: int = Use(pool)) -> None:
        gate.wait()

    with bench(app) as b:
        b.run("blocks", heartbeat_timeout_ms=300)
        assert second.wait(30), "another lane opens"
        ending = threading.Thread(target=b.executor.close)
        ending.start()
        until(lambda: not b.executor.can_run("blocks"), what="a worker that ends")
        gate.set()
        ending.join(30)
        assert not ending.is_alive()
    until(lambda: sorted(closed) == [1, 2], what="the resources of both")


def test_a_plain_step_keeps_its_resources_when_the_lane_that_it_took_them_from_was_blocked() -> None:
    app = App("t")
    blocked, plain = threading.Event(), threading.Event()
    closed: list[str] = []

    @app.resource
    async def pool():  # type: ignore[no-untyped-def]
        name = f"pool {threading.get_ident()}"
        yield name
        closed.append(name)

    @app.step
    async def blocks() -> None:
        blocked.wait()

    @app.step
    def uses(*, db: str = Use(pool)) -> bool:
        plain.wait()
        return db in closed

    @app.step
    async def where(*, db: str = Use(pool)) -> str:
        return db

    with bench(app) as b:
        first = b.run("where")
        until(lambda: first.result)
        using = b.run("uses", node_id="2")
        b.run("blocks", heartbeat_timeout_ms=300, node_id="3")
        until(b.executor.problems, what="a lane that is noticed to be blocked")
        until(lambda: not b.executor.problems(), what="another lane")
        blocked.set()
        looks = _looks_at(b.executor, 5)
        until(looks, what="some looks at the lane that is free again")
        assert closed == []
        plain.set()
        until(lambda: using.result)
        assert using.result is not None
        assert using.result["output"] is False
        assert first.result is not None
        until(lambda: closed == [first.result["output"]], what="a lane that nobody uses any more")


def _looks_at(executor: Executor, times: int) -> Callable[[], bool]:
    """Whether the pulse has looked at the lanes so many times since."""
    lanes_of: Any = executor._lanes
    look, seen = lanes_of.look, []

    def counted(now: float) -> None:
        look(now)
        seen.append(now)

    lanes_of.look = counted
    return lambda: len(seen) >= times
