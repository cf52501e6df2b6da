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
from unit.stepped_loop import SteppedLoop

SEEN: list[str] = []


@pytest.fixture(autouse=True)
def quiet(capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Not a warning (they are errors here), log line or word on the terminal, also after a collection."""
    SEEN.clear()
    yield
    gc.collect()
    assert capfd.readouterr() == ("", "")
    assert not caplog.records


async def nothing() -> None:
    """A coroutine that some of the programs never start."""


# -- programs, each suspended when it is dropped ------------------------------------------------


async def awaits_in_finally(loop: SteppedLoop) -> None:
    try:
        await loop.node()
    finally:
        SEEN.append("finally")
        await loop.node()
        SEEN.append("never: after an await in finally")


async def awaits_in_the_finally_of_what_it_awaits(loop: SteppedLoop) -> None:
    async def inner() -> None:
        try:
            await awaits_in_finally(loop)
        finally:
            await asyncio.sleep(1)

    try:
        await inner()
    finally:
        await asyncio.shield(loop.node())


async def awaits_what_exists_in_finally(loop: SteppedLoop) -> None:
    first, second = loop.create_future(), loop.create_future()

    async def inner() -> None:
        try:
            await loop.node()
        finally:
            try:
                await first
            finally:
                await second

    try:
        await inner()
    except RuntimeError:
        SEEN.append("never: that inner() will not end is not its caller's to hear")


async def raises_in_finally(loop: SteppedLoop) -> None:
    try:
        await loop.node()
    finally:
        raise SystemExit(1)


async def holds_coroutines_not_started(loop: SteppedLoop) -> None:
    held = [nothing(), nothing()]
    await asyncio.gather(loop.node(), nothing(), loop.node())
    await asyncio.gather(*held)


async def holds_one_on_the_stack(loop: SteppedLoop) -> None:
    await asyncio.gather(nothing(), await loop.node())


async def holds_one_in_a_cycle(loop: SteppedLoop) -> None:
    errors, held = [], nothing()
    try:
        raise ValueError
    except ValueError as error:
        errors.append(error)  # error → traceback → this frame → errors
    await loop.node()
    await held


async def is_in_a_group(loop: SteppedLoop) -> None:
    async with asyncio.TaskGroup() as group, asyncio.timeout(10):
        group.create_task(awaits_in_finally(loop))
        group.create_task(asyncio.sleep(5))
        await loop.node()


async def is_in_an_async_generator(loop: SteppedLoop) -> None:
    async def pages():
        try:
            while True:
                await awaits_in_finally(loop)
                yield 1
        finally:
            await loop.node()

    async for _ in pages():
        pass


async def left_an_async_generator(loop: SteppedLoop) -> None:
    async def pages():
        try:
            yield 1
        finally:
            SEEN.append("never: it is freed where it stands")

    async for _ in pages():
        break
    held = pages()
    await anext(held)
    await loop.node()
    await anext(held)


async def uses_locks_and_queues(loop: SteppedLoop) -> None:
    queue: asyncio.Queue[int] = asyncio.Queue()
    lock, condition = asyncio.Lock(), asyncio.Condition()

    async def waits() -> None:
        async with lock, condition:
            await asyncio.wait_for(queue.get(), timeout=30)

    await asyncio.wait([asyncio.create_task(waits()) for _ in range(3)])


async def has_a_task_not_started(loop: SteppedLoop) -> None:
    loop.call_soon(lambda: asyncio.create_task(nothing()))
    await loop.node()


async def failed_unseen(loop: SteppedLoop) -> None:
    async def fail() -> None:
        raise ValueError

    asyncio.create_task(fail())
    await loop.node()


@pytest.mark.parametrize(
    "program",
    [
        awaits_in_finally,
        awaits_in_the_finally_of_what_it_awaits,
        awaits_what_exists_in_finally,
        raises_in_finally,
        holds_coroutines_not_started,
        holds_one_on_the_stack,
        holds_one_in_a_cycle,
        is_in_a_group,
        is_in_an_async_generator,
        left_an_async_generator,
        uses_locks_and_queues,
        has_a_task_not_started,
        failed_unseen,
    ],
    ids=lambda program: program.__name__,
)
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
    del root, coro, loop
    gc.collect()


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
    assert loop.abandon() == 1
    assert len(kept) == 1
    assert 1_000 < len(tries) < 1_100  # each refusal made it try again: they end, else this would go on for ever
    released.append(True)  # the test must not leave it to the collector


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
