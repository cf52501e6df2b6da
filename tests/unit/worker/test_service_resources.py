"""What steps need open is open before a worker asks for its first task, and stays so until its last one has ended."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest
from support import until
from worker_rigs import MemorySource, MemoryTaskLog, task_json

from ductor_stream import App, Use
from ductor_stream.protocol.topics import Topics
from ductor_stream.protocol.worker import WorkerCodec
from ductor_stream.telemetry.metrics import Metrics
from ductor_stream.worker.clock import MachineClock
from ductor_stream.worker.executor import Executor
from ductor_stream.worker.service import WorkerConfig, WorkerService
from ductor_stream.worker.vigil import ExecutorConfig

GATE_WITHIN_S = 60


def service_of(app: App, log: MemoryTaskLog) -> WorkerService:
    metrics, clock = Metrics(), MachineClock()
    executor = Executor(ExecutorConfig(app.steps, "w", clock, metrics, WorkerCodec()))
    config = WorkerConfig(
        queues=["default"], concurrency=2, topics=Topics("t"), clock=clock, metrics=metrics, grace_s=GATE_WITHIN_S
    )
    return WorkerService(config, log, executor)


def test_resources_are_opened_before_the_first_poll_and_closed_after_the_drain(monkeypatch: pytest.MonkeyPatch) -> None:
    """By ``App.resource``'s promise, and with a step that goes on while the worker drains."""
    events: list[str] = []
    opening, gate = threading.Event(), threading.Event()
    app, log, poll = App("t"), MemoryTaskLog(), MemorySource.poll

    def noted(source: MemorySource, timeout: float, limit: int) -> Any:
        if "poll" not in events:
            events.append("poll")
        return poll(source, timeout, limit)

    monkeypatch.setattr(MemorySource, "poll", noted)

    @app.resource
    async def pool() -> AsyncIterator[dict[str, bool]]:
        state = {"open": True}
        opening.wait(GATE_WITHIN_S)
        events.append("open")
        yield state
        state["open"] = False
        events.append("close")

    @app.step
    def using(*, db: dict[str, bool] = Use(pool)) -> bool:
        events.append("begin")
        gate.wait(GATE_WITHIN_S)
        events.append("end")
        return db["open"]

    log.append("default", task_json("using"))
    service = service_of(app, log)
    thread = threading.Thread(target=service.run, daemon=True)
    thread.start()
    try:
        until(lambda: "the worker is starting" in service.problems())
        assert events == [], "nothing is asked for while the resource is not open"
        opening.set()
        until(lambda: "poll" in events)
        log.sources["default"].change("assigned", 0)
        until(lambda: "begin" in events)
        service.stop()
        until(lambda: "the worker is draining" in service.problems())
        assert "close" not in events
    finally:
        opening.set()
        gate.set()
        thread.join(GATE_WITHIN_S)
    assert not thread.is_alive()
    assert events == ["open", "poll", "begin", "end", "close"]
    assert [each["output"] for each in log.results()] == [True]
