"""What a coordinator and a worker count while runs go through all that happens to runs every day.

The others, about what goes wrong, are counted where that is tested: ``test_metrics_are_used`` sees to each.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections.abc import Iterator
from typing import Any, cast

import pytest
from confluent_kafka import Producer
from rig import FAST, Rig
from rig_services import Running
from support import fresh_name, until

from ductor_stream import App, Retry, Run, TerminalError, current_attempt
from ductor_stream.config import Settings
from ductor_stream.telemetry.metrics import Metrics
from ductor_stream.wiring.coordinators import open_coordinator
from ductor_stream.wiring.workers import open_worker


def make_app(namespace: str) -> App:
    """Workflows that end in each way."""
    app = App(namespace)
    word = app.signal("word", str)

    @app.step(retry=Retry(max_attempts=2, initial=0.01))
    async def once_more() -> int:
        if current_attempt().attempt == 1:
            raise ValueError("not yet")
        return 1

    @app.step
    async def refuses() -> None:
        raise TerminalError("no")

    @app.step(heartbeat=30)
    async def until_stopped() -> None:
        current_attempt().heartbeat("here")
        await asyncio.Event().wait()

    @app.workflow
    async def good(run: Run) -> int:
        await asyncio.sleep(0.01)
        return await run.step(once_more)

    @app.workflow
    async def bad(run: Run) -> None:
        await run.step(refuses)

    @app.workflow
    async def long(run: Run) -> None:
        await run.step(until_stopped)

    @app.workflow
    async def waits(run: Run) -> str:
        return await run.wait_signal(word)

    return app


class Counted:
    """Both services in this process, each with its metrics."""

    def __init__(self, rig: Rig) -> None:
        app = make_app(rig.namespace)
        settings = Settings(kafka_bootstrap=rig.bootstrap, database_url=rig.database, kafka={"fetch.wait.max.ms": "20"})
        self.coordinator, self.worker = Metrics(app="c"), Metrics(app="w")
        coordinator = open_coordinator(app, settings, self.coordinator, None, FAST)
        self.reading, self._rested = threading.Event(), threading.Event()
        self.reading.set()
        poll, log = coordinator.log.poll, cast(Any, coordinator.log)
        log.poll = lambda timeout, limit: poll(timeout, limit) if self.reading.wait(timeout) else self._rest()
        self.running = Running(coordinator, self.coordinator)
        self._worker, *_ = open_worker(app, settings, self.worker, ["default"], 4)
        self._thread = threading.Thread(target=self._worker.run, daemon=True)
        self._thread.start()

    def stop_reading(self) -> None:
        """Return when the coordinator reads nothing any more; ``reading`` set lets it go on."""
        self._rested.clear()
        self.reading.clear()
        until(self._rested.is_set)

    def _rest(self) -> list[Any]:
        self._rested.set()
        return []

    def value(self, name: str, **labels: str) -> float:
        """What ``/metrics`` of both would say together."""
        both = (self.coordinator, self.worker)
        return sum(each.registry.get_sample_value(name, {"app": each.app, **labels}) or 0.0 for each in both)

    def close(self) -> None:
        self._worker.stop()
        self._thread.join(60)
        self.reading.set()
        self.running.stop()


@pytest.fixture
def counted(rig: Rig) -> Iterator[Counted]:
    with contextlib.closing(Counted(rig)) as made:
        yield made


@pytest.mark.moves(
    "ductor_runs_started",
    "ductor_runs_closed",
    "ductor_runs_suspended",
    "ductor_runs_resumed",
    "ductor_runs_cached",
    "ductor_runs_loaded",
    "ductor_events",
    "ductor_ticks",
    "ductor_batch_size",
    "ductor_commit_seconds",
    "ductor_dispatch_seconds",
    "ductor_unconfirmed_batches",
    "ductor_attempts_dispatched",
    "ductor_attempts_finished",
    "ductor_attempts_in_flight",
    "ductor_timer_lateness_seconds",
    "ductor_partitions_owned",
    "ductor_takeovers",
    "ductor_worker_attempts",
    "ductor_worker_attempt_seconds",
    "ductor_queue_wait_seconds",
    "ductor_worker_busy",
    "ductor_worker_slots",
    "ductor_worker_stops",
    "ductor_worker_heartbeats",
    "ductor_result_ack_seconds",
)
def test_what_happens_every_day_is_counted(rig: Rig, counted: Counted, monkeypatch: pytest.MonkeyPatch) -> None:
    value, queue = counted.value, {"queue": "default"}
    unconfirmed: list[float] = []
    gauge = counted.coordinator.unconfirmed_batches
    counts = gauge.set
    monkeypatch.setattr(gauge, "set", lambda batches: (unconfirmed.append(batches), counts(batches)))

    def reached(name: str, least: float = 1, **labels: str) -> None:
        until(lambda: value(name, **labels) >= least, within_ms=30_000, what=f"{name} {labels}")

    rig.start("good-1", "good-2", workflow="good", input=None)
    rig.start("bad", workflow="bad", input=None)
    rig.start("long", workflow="long", input=None)
    rig.start("waits", workflow="waits", input=None)
    rig.until_status("completed", "good-1", "good-2")
    rig.until_status("failed", "bad")
    reached("ductor_worker_busy", **queue)
    reached("ductor_attempts_in_flight")
    reached("ductor_worker_heartbeats_total")
    reached("ductor_runs_cached")
    for command in ("pause", "resume"):
        rig.send(rig.topics.run_events, "waits", {"type": f"run.{command}", "command_id": command})
    reached("ductor_runs_resumed_total")
    for run_id in ("long", "waits"):
        rig.send(rig.topics.run_events, run_id, {"type": "run.cancel", "command_id": "c"})
    rig.until_status("cancelled", "long", "waits")
    reached("ductor_worker_stops_total")
    rig.start("none", workflow="good", input=None, version="7")
    reached("ductor_runs_suspended_total", reason="version_missing")

    assert value("ductor_runs_started_total") == 6
    assert value("ductor_runs_closed_total", outcome="completed") == 2
    assert value("ductor_runs_closed_total", outcome="failed") == 1
    assert value("ductor_runs_closed_total", outcome="cancelled") == 2
    assert value("ductor_runs_loaded_total") >= 6
    assert value("ductor_events_total", topic="run-events") >= 9
    assert value("ductor_events_total", topic="attempt-results") >= 6
    assert value("ductor_ticks_total") >= 15
    assert value("ductor_attempts_dispatched_total", path="kafka") == 6
    assert value("ductor_attempts_finished_total", outcome="completed") == 2
    assert value("ductor_attempts_finished_total", outcome="failed") == 3
    for histogram in ("batch_size", "commit_seconds", "dispatch_seconds", "timer_lateness_seconds"):
        reached(f"ductor_{histogram}_count")
    until(lambda: value("ductor_unconfirmed_batches") == 0, what="all batches confirmed")
    assert max(unconfirmed) >= 1

    assert value("ductor_worker_slots", **queue) == 4
    reached("ductor_worker_attempts_total", 2, outcome="completed", **queue)
    reached("ductor_worker_attempts_total", 3, outcome="failed", **queue)
    reached("ductor_worker_attempts_total", outcome="cancelled", **queue)
    reached("ductor_worker_attempt_seconds_count", 6, **queue)
    reached("ductor_queue_wait_seconds_count", 6, **queue)
    reached("ductor_result_ack_seconds_count")
    until(lambda: value("ductor_worker_busy", **queue) == 0, what="an idle worker")


def test_lag_is_what_is_not_applied_yet(rig: Rig, counted: Counted) -> None:
    def lag(topic: str) -> float:
        return sum(counted.value("ductor_lag", topic=topic, partition=str(p)) for p in range(rig.partitions))

    until(lambda: counted.running.owned == {0, 1} and counted.running.reasons() == [], within_ms=30_000)
    counted.stop_reading()
    rig.start(*(f"good-{n}" for n in range(7)), workflow="good", input=None)
    until(lambda: lag("run-events") == 7, what="seven starts that wait")
    assert lag("attempt-results") == 0
    until(lambda: any("records wait" in why for why in counted.running.reasons()), what="red for a stall")
    counted.reading.set()
    rig.until_status("completed", *(f"good-{n}" for n in range(7)))
    until(lambda: (lag("run-events"), lag("attempt-results")) == (0, 0), what="nothing that waits")
    until(lambda: counted.running.reasons() == [], what="green again")


def test_a_transaction_that_is_left_open_is_told_by_its_age(rig: Rig, counted: Counted) -> None:
    """Protocol 26: what stands behind it is not read, and neither lag nor readiness shows that."""
    place = {"topic": "run-events", "partition": str(rig.home("inside"))}
    until(lambda: counted.running.owned == {0, 1} and counted.running.reasons() == [], within_ms=30_000)
    source = Producer({"bootstrap.servers": rig.bootstrap, "transactional.id": fresh_name(), "log_level": 0})
    source.init_transactions(20)
    source.begin_transaction()
    start = {"type": "run.start", "run_id": "inside", "workflow": "good", "input": None}
    source.produce(rig.topics.run_events, json.dumps(start), "inside", rig.home("inside"))
    assert source.flush(20) == 0
    rig.start("behind", workflow="good", input=None, partition=rig.home("inside"))
    until(lambda: counted.value("ductor_held_back_seconds", **place) > 1, what="the age of what is held back")
    assert counted.value("ductor_lag", **place) == 0
    assert counted.running.reasons() == []
    assert rig.run("behind") == {}
    source.commit_transaction(20)
    rig.until_status("completed", "inside", "behind")
    until(lambda: counted.value("ductor_held_back_seconds", **place) == 0, what="nothing held back")
