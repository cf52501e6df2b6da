"""The loop that workflow code runs on: callbacks, cancellation, bounds, and its life inside another loop."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from ductor_stream.engine.planners.loop import LoopDropped, LoopOverrun, WorkflowTask
from unit.stepped_loop import SteppedLoop, every_loop_abandoned  # noqa: F401 - an autouse fixture

# -- cancellation, exceptions -----------------------------------------------------------------


def test_cancelling_the_root_raises_at_its_await_and_lets_go_of_its_timer():
    loop = SteppedLoop()

    async def workflow():
        try:
            await asyncio.sleep(30)
        except asyncio.CancelledError as error:
            loop.said.append(f"cancelled {error.args[0]}")
            raise

    root = loop.start(workflow())
    root.cancel("by order")
    loop.run_ready()
    assert root.cancelled()
    assert loop.said == ["timer 1 at 130", "cancel 1", "cancelled by order"]


def test_a_failing_callback_is_kept_and_nothing_is_printed(capfd: pytest.CaptureFixture[str], caplog: Any):
    loop = SteppedLoop()
    loop.call_soon(lambda: 1 / 0)
    loop.run_ready()
    assert [type(each["exception"]) for each in loop.exceptions] == [ZeroDivisionError]
    for _ in range(200):
        loop.call_soon(lambda: 1 / 0)
    loop.run_ready()
    assert len(loop.exceptions) == 100
    assert capfd.readouterr() == ("", "")
    assert not caplog.records


def test_what_the_collector_reports_is_not_kept_and_all_else_is():
    """Its moment does not repeat in replay."""
    loop = SteppedLoop()
    reported = {"message": "a message of the workflow's own"}
    loop.default_exception_handler(reported)
    loop.call_exception_handler({"exception": ValueError()})

    async def waits() -> None:
        await loop.create_future()

    asyncio.Task(waits(), loop=loop)  # asyncio's own, which nobody holds
    loop.run_ready()
    gc.collect()
    assert [each.get("message") for each in loop.exceptions] == [reported["message"], None]
    loop.abandon()
    loop.call_exception_handler(reported)
    assert loop.exceptions == []


def test_a_loop_says_whether_it_runs_and_never_measures():
    loop = SteppedLoop()

    def says() -> tuple[bool, bool, bool]:
        return loop.is_running(), loop.is_closed(), loop.get_debug()

    async def workflow():
        return says()

    assert says() == (False, False, False)
    assert loop.start(workflow()).result() == (True, False, False)
    assert says() == (False, False, False)


def test_a_task_that_failed_unseen_is_told_without_waiting_for_the_collector():
    loop = SteppedLoop()

    async def fail(text: str) -> None:
        raise ValueError(text)

    async def workflow():
        for n in range(200):  # enough to make the loop forget tasks that are done
            asyncio.create_task(fail(f"unseen {n}") if n % 50 == 0 else asyncio.sleep(0))
            await asyncio.sleep(0)
        seen = asyncio.create_task(fail("seen"))
        await asyncio.wait([seen])
        seen.exception()
        loop.create_future().set_exception(ValueError("freed at once, and no task"))

    loop.start(workflow())
    assert [task.get_name() for task in loop.unretrieved()] == ["task-1", "task-51", "task-101", "task-151"]
    assert loop.exceptions == []


def test_a_systemexit_of_workflow_code_comes_out_and_the_rest_stays_ready():
    loop, calls = SteppedLoop(), []

    def leave() -> None:
        raise SystemExit(3)

    loop.call_soon(leave)
    loop.call_soon(calls.append, 1)
    with pytest.raises(SystemExit):
        loop.run_ready()
    assert not loop.is_running()
    loop.run_ready()
    assert calls == [1]


# -- bounds -----------------------------------------------------------------------------------


def test_a_workflow_that_never_waits_is_stopped():
    loop = SteppedLoop()

    async def workflow():
        while True:
            await asyncio.sleep(0)

    loop.spawn_root(workflow())
    with pytest.raises(LoopOverrun, match="1,000 callbacks without waiting"):
        loop.run_ready(max_callbacks=1_000)
    assert loop.abandon() == 0


def test_the_bound_counts_callbacks_exactly():
    loop, calls = SteppedLoop(), []
    for n in range(5):
        loop.call_soon(calls.append, n)
    with pytest.raises(LoopOverrun):
        loop.run_ready(max_callbacks=4)
    assert calls == []
    loop.run_ready(max_callbacks=5)
    assert calls == [0, 1, 2, 3, 4]


# -- the outer world of the loop --------------------------------------------------------------


def test_a_loop_that_runs_cannot_be_run_closed_or_abandoned():
    loop, refused = SteppedLoop(), []

    def try_each() -> None:
        for call in (loop.run_ready, loop.close, loop.abandon):
            with pytest.raises(RuntimeError):
                call()
            refused.append(call.__name__)

    loop.call_soon(try_each)
    loop.run_ready()
    assert refused == ["run_ready", "close", "abandon"]


def test_inside_a_running_loop_both_keep_their_own_loop_and_task():
    async def coordinator() -> None:
        def outer() -> tuple[object, ...]:
            return asyncio.get_running_loop(), asyncio.current_task(), *sys.get_asyncgen_hooks()

        before, loop, seen = outer(), SteppedLoop(), []

        async def workflow(how: Callable[[], Awaitable[None]]) -> None:
            assert asyncio.get_running_loop() is loop
            seen.append(asyncio.current_task())
            await how()

        async def leave() -> None:
            raise SystemExit

        first = loop.start(workflow(loop.node))
        assert outer() == before
        last = loop.spawn_root(workflow(leave))
        with pytest.raises(SystemExit):
            loop.run_ready()
        assert outer() == before
        await asyncio.sleep(0)  # the outer loop goes on as if nothing had been
        assert seen == [first, last]
        assert isinstance(last.exception(), SystemExit)
        loop.abandon()
        assert outer() == before

    asyncio.run(coordinator())


def test_context_variables_do_not_come_in_or_go_out():
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="unset")
    variable.set("the coordinator's")
    loop, seen = SteppedLoop(), []

    async def workflow():
        seen.append(variable.get())
        variable.set("the workflow's")
        await loop.node()
        seen.append(variable.get())

    loop.start(workflow())
    loop.call_soon(lambda: seen.append(variable.get()))
    loop.answer("1")
    assert seen == ["unset", "unset", "the workflow's"]
    assert variable.get() == "the coordinator's"


def test_tasks_are_ours_and_held_until_they_are_done():
    loop = SteppedLoop()

    async def workflow():
        asyncio.create_task(loop.node("forgotten"))
        await loop.node()

    root = loop.start(workflow())
    assert [type(task) for task in loop.live_tasks()] == [WorkflowTask, WorkflowTask]
    assert [task.place for task in loop.live_tasks()] == ["", "1"]
    loop.answer("2")
    assert root.done()
    assert [task.get_name() for task in loop.live_tasks()] == ["task-1"]
    loop.answer("1.1")
    assert loop.live_tasks() == []


def test_tasks_and_timers_have_the_name_and_the_context_that_they_are_given():
    loop = SteppedLoop()
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable")
    context = contextvars.Context()
    context.run(variable.set, "given")

    async def part() -> None:
        loop.said.append(variable.get("none"))

    async def workflow():
        given = asyncio.get_running_loop().create_task(part(), name="mine", context=context)
        assert given.get_name() == "mine"
        await given
        await asyncio.create_task(part())
        asyncio.get_running_loop().call_later(1, lambda: loop.said.append(variable.get("none")), context=context)

    loop.start(workflow())
    (place,) = loop.pending
    loop.due(place)
    assert [said for said in loop.said if not said.startswith("timer")] == ["given", "none", "given"]


def test_a_loop_that_was_dropped_runs_nothing_more():
    loop = SteppedLoop()
    loop.abandon()
    with pytest.raises(LoopDropped, match=r"^the loop was dropped$"):
        loop.run_ready()
    with pytest.raises(LoopDropped, match=r"^no run starts on a dropped loop$"):
        loop.spawn_root(asyncio.sleep(0))


def test_a_loop_that_runs_can_be_neither_run_nor_closed():
    loop = SteppedLoop()
    told: list[BaseException] = []

    def again() -> None:
        for call in (loop.run_ready, loop.close):
            try:
                call()
            except RuntimeError as error:
                told.append(error)

    loop.call_soon(again)
    loop.run_ready()
    assert [(type(each), str(each)) for each in told] == [
        (RuntimeError, "the loop is running already"),
        (RuntimeError, "a running loop cannot be closed"),
    ]
