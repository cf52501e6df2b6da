"""A step that blocks the event loop blocks its own lane: others are found another one."""

from __future__ import annotations

import threading

import pytest
from support import until
from worker_rigs import bench

from ductor_stream import App, Use
from ductor_stream.worker import lanes


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
