"""Dropping a run from memory: its coroutines end without a word, and nothing that they still do counts."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Coroutine, Iterator
from contextvars import ContextVar
from typing import Any

import pytest

from ductor_stream.engine.planners import dropping
from ductor_stream.engine.planners.loop import LoopDropped
from unit.abandoned_programs import SEEN, SUSPENDED, nothing
from unit.stepped_loop import SteppedLoop


@pytest.fixture(autouse=True)
def quiet(capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Not a warning (they are errors here), log line or word on the terminal, also after a collection."""
    SEEN.clear()
    yield
    SteppedLoop.made.clear()
    gc.collect()
    assert capfd.readouterr() == ("", "")
    assert not caplog.records


@pytest.mark.parametrize("program", SUSPENDED, ids=lambda program: program.__name__)
@pytest.mark.parametrize("started", [True, False], ids=["started", "not started"])
def test_a_dropped_run_is_silent(program: Callable[[SteppedLoop], Coroutine[Any, Any, None]], started: bool):
    loop = SteppedLoop()
    root = loop.spawn_root(program(loop))
    if started:
        loop.run_ready()
    said = list(loop.said)
    assert loop.abandon() == 0
    coro = root.get_coro()
    assert coro is None or coro.cr_frame is None
    assert not [each for each in SEEN if each.startswith("never")]
    assert loop.said == said  # neither node nor timer came of it


def test_what_was_ready_is_dropped_too():
    loop = SteppedLoop()
    loop.call_soon(asyncio.ensure_future, nothing())
    assert loop.abandon() == 0


def test_user_code_that_ends_meanwhile_finds_the_dropped_loop_and_no_other():
    """Else a ``finally: asyncio.create_task(…)`` of a workflow would start a task of the coordinator."""
    variable: ContextVar[str] = ContextVar("variable", default="unset")

    async def workflow(loop: SteppedLoop) -> None:
        try:
            await loop.node()
        finally:
            assert asyncio.get_running_loop() is loop
            assert asyncio.current_task() is None
            SEEN.append(variable.get())
            variable.set("the workflow's")
            try:
                asyncio.create_task(nothing())
            except LoopDropped:
                SEEN.append("refused")

    async def coordinator() -> None:
        variable.set("the coordinator's")
        loop, task = SteppedLoop(), asyncio.current_task()
        loop.start(workflow(loop))
        loop.abandon()
        assert asyncio.all_tasks() == {task}
        assert variable.get() == "the coordinator's"

    asyncio.run(coordinator())
    assert SEEN == ["unset", "refused"]


def test_an_async_generator_that_is_awaited_ends_as_its_caller_does():
    loop = SteppedLoop()

    async def pages():
        try:
            yield await loop.create_future()
        finally:
            try:
                await asyncio.sleep(0)  # needs no loop: a dropped one cannot refuse it
            finally:
                SEEN.append("finally")

    async def workflow() -> None:
        async for _ in pages():
            pass

    loop.start(workflow())
    assert loop.abandon() == 0
    assert SEEN == ["finally"]


def test_code_that_cannot_be_ended_is_kept_and_counted(monkeypatch: pytest.MonkeyPatch):
    kept: list[object] = []
    monkeypatch.setattr(dropping, "_unending", kept)
    tries, released = [], []

    async def stubborn() -> None:
        while not released:
            try:
                tries.append(1)
                await asyncio.sleep(1)
            except BaseException:  # noqa: BLE001, S110 - the mistake under test
                pass

    loop = SteppedLoop()
    loop.start(stubborn())
    unended = loop.abandon()
    released.append(True)  # the test must not leave it to the collector
    assert (unended, len(kept)) == (1, 1)
    assert loop.said == ["timer 1 at 101"]  # of its first try: what it set afterwards is nobody's
    assert 1_000 < len(tries) < 1_100  # each refusal made it try again: they end, else this would go on for ever


def test_every_call_on_a_dropped_loop_is_refused():
    loop = SteppedLoop()
    timer = loop.call_later(5, print)
    loop.abandon()
    unawaited = nothing()
    calls: list[Callable[[], object]] = [
        lambda: loop.call_soon(print),
        lambda: loop.call_later(0, print),
        lambda: loop.call_later(1, print),
        lambda: loop.call_at(1, print),
        lambda: loop.fire(timer),
        lambda: loop.spawn_root(nothing()),
        lambda: loop.create_task(unawaited),
        loop.create_future,
        loop.place,
        loop.run_ready,
    ]
    for call in calls:
        with pytest.raises(LoopDropped):
            call()
    timer.cancel()
    assert loop.said == ["timer t1 at 105"]
    assert loop.is_closed()
    assert loop.abandon() == 0


def test_closing_runs_nothing():
    loop = SteppedLoop()
    root = loop.start(nothing())
    loop.call_soon(SEEN.append, "ran")
    loop.close()
    with pytest.raises(LoopDropped):
        loop.run_ready()
    assert root.done()
    assert SEEN == []


def test_elsewhere_a_forgotten_await_still_warns():
    with pytest.warns(RuntimeWarning, match="coroutine 'nothing' was never awaited"):
        nothing()
