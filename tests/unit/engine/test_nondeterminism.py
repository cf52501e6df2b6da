"""Code that does not fit a run's history suspends the run, and the report shows both sides and the user's line.

In each case a run has begun with ``old``, and its owner is started again with the other function under the same
version. The line that the report must name is marked with ``# HERE``.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections.abc import Callable
from typing import Any

import pytest

from ductor_stream.engine.definition import RetryPolicy, StepOptions
from ductor_stream.engine.events import Redeployed
from ductor_stream.engine.state import Parked
from ductor_stream.engine.tick import replay
from ductor_stream.errors import TerminalError
from unit.engine.driver import Driver
from unit.engine.programs import CHILD, SIGNALS, STEPS, signal, step, workflow

A, B, C = STEPS["a"], STEPS["b"], STEPS["c"]


async def old(run: Any) -> Any:
    first = await run.step(A, 1)
    async with asyncio.timeout(60):
        second, third = await asyncio.gather(run.step(B, first), run.step(C, first))
    return [second, third]


# History of the old code: 1 = step a, 2 = the timeout's timer, 3 and 4 = the tasks of gather, 3.1 = b, 4.1 = c.


async def inserted(run: Any) -> Any:
    first = await run.step(A, 1)
    await run.step(C, 0)  # HERE
    async with asyncio.timeout(60):
        return await asyncio.gather(run.step(B, first), run.step(C, first))


async def deleted(run: Any) -> Any:
    async with asyncio.timeout(60):  # HERE
        return await asyncio.gather(run.step(B, "one"), run.step(C, "one"))


async def swapped(run: Any) -> Any:
    first = await run.step(A, 1)
    async with asyncio.timeout(60):
        return await asyncio.gather(run.step(C, first), run.step(B, first))  # HERE


async def renamed(run: Any) -> Any:
    return await run.step(step("charge"), 1)  # HERE


async def other_argument(run: Any) -> Any:
    return await run.step(A, 2)  # HERE


async def other_await_order(run: Any) -> Any:
    first = await run.step(A, 1)
    async with asyncio.timeout(60):
        return [await run.step(B, first), await run.step(C, first)]  # HERE


async def other_time(run: Any) -> Any:
    first = await run.step(A, 1)
    async with asyncio.timeout(30):  # HERE
        return await asyncio.gather(run.step(B, first), run.step(C, first))


async def one_less(run: Any) -> Any:
    first = await run.step(A, 1)
    async with asyncio.timeout(60):
        return await asyncio.gather(run.step(B, first))  # HERE


async def one_more(run: Any) -> Any:
    first = await run.step(A, 1)
    async with asyncio.timeout(60):
        return await asyncio.gather(run.step(B, first), run.step(C, first), run.step(A, first))  # HERE


async def returns_early(run: Any) -> Any:  # HERE
    return await run.step(A, 1)


async def returns_at_once(run: Any) -> Any:  # HERE
    return "nothing to do"


async def fails_early(run: Any) -> Any:  # HERE
    await run.step(A, 1)
    raise TerminalError("changed its mind")


async def a_signal_instead(run: Any) -> Any:
    return await run.wait_signal(SIGNALS["x"])  # HERE


async def a_child_instead(run: Any) -> Any:
    return await run.child(CHILD, 1)  # HERE


async def in_a_helper(run: Any) -> Any:
    first = await run.step(A, 1)

    async def helper() -> Any:
        return await run.step(C, "helped")  # HERE

    async with asyncio.timeout(60):
        return await asyncio.gather(helper(), run.step(C, first))


B_LINE, C_LINE = 'node 3.1: step b with input ["one"]', 'node 4.1: step c with input ["one"]'
TIMER_LINE = "node 2: timer due at 62000 ms"
CHANGES = [
    (inserted, TIMER_LINE, "node 2: step c with input [0]"),
    (deleted, "node 1: step a with input [1]", "node 1: timer due at 61000 ms"),
    (swapped, B_LINE, 'node 3.1: step c with input ["one"]'),
    (renamed, "node 1: step a with input [1]", "node 1: step charge with input [1]"),
    (other_argument, "node 1: step a with input [1]", "node 1: step a with input [2]"),
    (other_await_order, B_LINE, 'node 3: step b with input ["one"]'),
    (other_time, TIMER_LINE, "node 2: timer due at 32000 ms"),
    (one_less, C_LINE, "waits at"),
    (one_more, "nothing", 'node 5.1: step a with input ["one"]'),
    (returns_early, TIMER_LINE, 'the result "one"'),
    (returns_at_once, "node 1: step a with input [1]", 'the result "nothing to do"'),
    (fails_early, TIMER_LINE, "the failure TerminalError: changed its mind"),
    (a_signal_instead, "node 1: step a with input [1]", "node 1: signal x"),
    (a_child_instead, "node 1: step a with input [1]", "node 1: child wf"),
    (in_a_helper, B_LINE, 'node 3.1: step c with input ["helped"]'),
]


def marked_line(function: Callable[..., Any]) -> str:
    """``file:line`` of the line of the function that is marked."""
    lines, first = inspect.getsourcelines(function)
    [place] = [number for number, line in enumerate(lines) if "# HERE" in line]
    return f"{__file__}:{first + place} in"


def halfway() -> Driver:
    """A run of the old code that waits for b and c."""
    driver = Driver(workflow(old, digest="old"))
    driver.start()
    driver.finish("1", "one", at=2_000)
    assert sorted(driver.state.nodes) == ["2", "3.1", "4.1"]
    return driver


@pytest.mark.parametrize(("changed", "recorded", "found"), CHANGES, ids=[c[0].__name__ for c in CHANGES])
def test_a_change_is_found_and_reported_and_mended(changed: Callable[..., Any], recorded: str, found: str) -> None:
    driver = halfway()
    sent = driver.dispatched()
    driver.deploy(workflow(changed, digest="new"))
    driver.finish("3.1", "two")
    code, message = driver.parked
    assert (driver.status, code) == ("suspended", "nondeterminism")
    assert message.startswith(f"history has {recorded}; this code")
    assert found in message
    assert marked_line(changed) in message
    assert driver.dispatched() == sent
    replayed = replay(workflow(changed), "r", driver.history())
    assert replayed is not None
    assert (replayed.code, replayed.message) == (code, message)
    # What comes meanwhile is not lost, and code that fits takes it from there.
    driver.finish("4.1", "three")
    driver.hear(Redeployed("new", "1"))
    assert driver.status == "suspended"
    driver.deploy(workflow(old, digest="old-again"))
    driver.hear(Redeployed("old-again", "1"))
    assert driver.result == ["two", "three"]


def test_the_suspension_is_recorded_and_told() -> None:
    driver = halfway()
    driver.deploy(workflow(renamed, digest="new"))
    told = driver.finish("3.1", "two")
    [record] = told.records
    assert record.decisions is None
    assert isinstance(record.parked, Parked)
    assert record.parked.digest == "new"
    assert driver.lifecycle() == ["run.started", "run.suspended"]
    assert driver.actions[-1].reason.startswith("nondeterminism: history has")


def test_other_code_that_does_not_fit_either_suspends_again() -> None:
    driver = halfway()
    for changed in (renamed, one_less):
        driver.deploy(workflow(changed, digest=changed.__name__))
        driver.hear(Redeployed(changed.__name__, "1")) if driver.status == "suspended" else driver.finish("3.1", "two")
        assert driver.parked[0] == "nondeterminism"
    driver.deploy(workflow(old, digest="old"))
    driver.hear(Redeployed("old", "1"))
    assert (driver.status, driver.header.parked) == ("running", None)
    driver.finish("4.1", "three")
    assert driver.result == ["two", "three"]


def test_a_change_behind_the_place_where_the_run_stands_goes_unnoticed() -> None:
    async def longer(run: Any) -> Any:
        first = await run.step(A, 1)
        async with asyncio.timeout(60):
            second, third = await asyncio.gather(run.step(B, first), run.step(C, first))
        return [second, third, await run.step(A, 7)]

    driver = halfway()
    driver.deploy(workflow(longer, digest="new"))
    driver.finish("3.1", "two")
    driver.finish("4.1", "three")
    driver.finish("5", "four")
    assert driver.result == ["two", "three", "four"]


def test_options_of_a_step_may_change_and_the_recorded_ones_hold_for_open_nodes() -> None:
    def version(options: StepOptions) -> Callable[..., Any]:
        async def runs(run: Any) -> Any:
            return [await run.step(step("a", options), 1), await run.step(step("b", options), 2)]

        return runs

    before = StepOptions(queue="slow", retry=RetryPolicy(max_attempts=1))
    after = StepOptions(queue="fast", heartbeat_ms=5, retry=RetryPolicy(max_attempts=9))
    driver = Driver(workflow(version(before)))
    driver.start()
    driver.deploy(workflow(version(after), digest="new"))
    assert driver.node("1").options == before
    driver.finish("1", "one")
    assert driver.node("2").options == after
    driver.lose()
    driver.finish("2", "two")
    assert driver.result == ["one", "two"]


def told(before: Callable[..., Any], after: Callable[..., Any], *happens: Callable[[Driver], Any]) -> str:
    """What replay says of a run of the code ``before`` under the code ``after``."""
    driver = Driver(workflow(before))
    driver.start()
    for one in happens:
        one(driver)
    found = replay(workflow(after), "r", [record for record in driver.records if record.execution == 1])
    assert found is not None
    return found.message


async def then_a_step(run: Any) -> Any:
    await run.step(A, 1)
    await run.step(B, "a" + "ä" * 150)


async def then_a_signal(run: Any) -> Any:
    await run.step(A, 1)
    return await run.wait_signal(SIGNALS["x"])


async def then_a_number(run: Any) -> Any:
    await run.step(A, 1)
    return await run.wait_signal(signal("x", int))


async def then_a_change(run: Any) -> Any:
    await run.step(A, 1)
    return run.patched("use-b")


async def then_the_next(run: Any) -> Any:
    await run.step(A, 1)
    run.continue_as_new("x" * 198)


async def then_a_view(run: Any) -> Any:
    await run.step(A, 1)
    run.set_view("x" * 199)


async def stays(run: Any) -> Any:
    try:
        await run.step(A, 1)
    except asyncio.CancelledError:
        await run.wait_signal(SIGNALS["x"])


async def lets_go(run: Any) -> Any:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(60):
            await run.step(A, 1)


async def forgets(run: Any) -> Any:
    asyncio.get_running_loop().call_later(60, int)
    await run.step(A, 1)


SHOWN = 'node 2: step b with input ["a' + "ä" * 98 + "\ufffd…"
"""Two hundred bytes of an input are shown, of which the last is half a letter."""


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (then_a_signal, "signal s taken"),
        (then_a_number, "signal s passed over, its payload not fitting"),
        (then_the_next, f'continue as new with "{"x" * 198}"'),
        (then_a_view, f'the view "{"x" * 199}…'),
    ],
)
def test_each_kind_of_decision_is_told_in_words(function: Callable[..., Any], said: str) -> None:
    happens = (lambda d: d.send("x", "no number", "s"), lambda d: d.finish("1"))
    assert told(function, then_a_step, *happens).startswith(f"history has {said}; this code has {SHOWN} at ")
    assert told(then_a_step, function, *happens).startswith(f"history has {SHOWN}; this code has {said} at ")


def test_a_change_a_cancel_and_what_was_let_go_of_are_told_in_words() -> None:
    cancel = lambda d: d.order("cancel")
    assert told(then_a_change, then_a_step, lambda d: d.finish("1")).startswith("history has the change use-b; this")
    assert told(stays, then_a_step, cancel).startswith(
        "history has node 2: signal x; this code has the run cancelled at"
    )
    assert told(then_a_step, stays, cancel).startswith(
        "history has the run cancelled; this code has node 2: signal x at"
    )
    message = told(lets_go, forgets, lambda d: d.pass_time())
    assert message.startswith("history has node 2 no longer awaited; this code waits at ")
