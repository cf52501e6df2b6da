"""When heartbeats are sent: by the worker itself, by the step, and never for what is short."""

from __future__ import annotations

import threading

import pytest
from support import until
from worker_rigs import bench

from ductor_stream import App, InvalidValue, PayloadTooLarge, current_attempt
from ductor_stream.worker.attempt import NEVER, Rhythm


def _beats(rhythm: Rhythm, until_s: float) -> list[float]:
    found = []
    while rhythm.due <= until_s:
        found.append(round(rhythm.due, 3))
        rhythm.sent(rhythm.due)
    return found


def test_the_worker_beats_first_after_a_second_then_every_third_of_the_timeout() -> None:
    assert _beats(Rhythm(0.0, 10_000, automatic=True), 12) == [1.0, 4.333, 7.667, 11.0]
    assert _beats(Rhythm(5.0, 30_000, automatic=True), 27) == [6.0, 16.0, 26.0]


def test_it_beats_at_most_once_a_second_where_the_timeout_allows_that() -> None:
    assert _beats(Rhythm(0.0, 2_400, automatic=True), 4) == [0.8, 1.8, 2.8, 3.8]
    assert _beats(Rhythm(0.0, 300, automatic=True), 0.6) == [0.1, 0.25, 0.4, 0.55]
    assert _beats(Rhythm(0.0, 0, automatic=True), 0.2) == [0.033, 0.083, 0.133, 0.183]


def test_a_steps_own_beats_are_sent_at_once_and_then_at_most_once_a_second() -> None:
    rhythm = Rhythm(0.0, 30_000, automatic=False)
    assert rhythm.due == NEVER
    assert rhythm.note(b"1", 5.0) == 5.0
    rhythm.sent(5.0)
    assert rhythm.due == NEVER
    assert rhythm.note(b"2", 5.2) == 6.0
    assert rhythm.note(b"3", 5.9) == 6.0
    assert rhythm.details == b"3"
    rhythm.sent(6.0)
    assert rhythm.due == NEVER
    assert rhythm.note(b"4", 9.0) == 9.0


def test_a_step_that_says_nothing_is_beaten_for_while_it_runs() -> None:
    app = App("t")
    gate = threading.Event()

    @app.step
    def plain() -> None:
        gate.wait()

    @app.step
    def short() -> None:
        pass

    with bench(app) as b:
        long = b.run("plain", heartbeat_timeout_ms=300, node_id="1")
        brief = b.run("short", heartbeat_timeout_ms=300, node_id="2")
        until(lambda: len(long.beats) >= 3)
        gate.set()
        until(lambda: long.result)
    assert brief.beats == []
    assert {"type": "attempt.heartbeat", "run_id": "run-1", "node_id": "1", "worker": "bench"}.items() <= long.beats[0].items()  # fmt: skip
    assert "details" not in long.beats[0]


def test_with_its_own_heartbeat_only_the_steps_calls_are_sent() -> None:
    app = App("t")
    said, gate = threading.Event(), threading.Event()

    @app.step(heartbeat=0.3)
    def plain() -> None:
        current_attempt().heartbeat({"page": 1})
        current_attempt().heartbeat({"page": 2})
        said.set()
        gate.wait()

    @app.step(heartbeat=0.3)
    def silent() -> None:
        gate.wait()

    @app.step
    def helped() -> None:
        gate.wait()

    with bench(app) as b:
        one, none = b.run("plain", heartbeat_timeout_ms=300), b.run("silent", heartbeat_timeout_ms=300, node_id="2")
        many = b.run("helped", heartbeat_timeout_ms=300, node_id="3")
        assert said.wait(10)
        until(lambda: len(one.beats) == 2 and len(many.beats) >= 5)
        gate.set()
        until(lambda: one.result)
    assert [beat["details"] for beat in one.beats] == [{"page": 1}, {"page": 2}]
    assert none.beats == []


def test_details_that_cannot_be_sent_are_the_steps_own_error() -> None:
    app = App("t")
    refused: list[type[BaseException]] = []

    @app.step(heartbeat=30)
    def plain() -> None:
        for details in (object(), "x" * 17_000):
            with pytest.raises((InvalidValue, PayloadTooLarge)) as caught:
                current_attempt().heartbeat(details)
            refused.append(caught.type)

    with bench(app) as b:
        delivery = b.run("plain")
        until(lambda: delivery.result)
    assert refused == [InvalidValue, PayloadTooLarge]
    assert delivery.beats == []


def test_nothing_is_beaten_after_the_end() -> None:
    app = App("t")
    kept = []

    @app.step(heartbeat=30)
    def plain() -> None:
        kept.append(current_attempt())

    with bench(app) as b:
        delivery = b.run("plain")
        until(lambda: delivery.result)
        kept[0].heartbeat("still there")
    assert delivery.beats == []


def test_attempts_that_are_announced_beat_at_once() -> None:
    app = App("t")
    gate = threading.Event()

    @app.step
    def plain() -> None:
        gate.wait()

    @app.step(heartbeat=30)
    def own() -> None:
        gate.wait()

    with bench(app) as b:
        one, two = b.run("plain"), b.run("own", node_id="2")
        until(lambda: b.executor.busy == 2)
        b.executor.announce([_fence("1"), _fence("2"), _fence("3")])
        assert len(one.beats) == 1
        assert two.beats == []
        gate.set()


def _fence(node_id: str):  # type: ignore[no-untyped-def]
    from ductor_stream.engine.ids import Fence

    return Fence("run-1", 1, node_id, 1)
