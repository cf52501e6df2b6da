"""Time is told to the loop, and its timers come due when somebody says so."""

from __future__ import annotations

import asyncio
import math

import pytest

from unit.stepped_loop import SteppedLoop, every_loop_abandoned  # noqa: F401 - an autouse fixture


def test_time_is_that_of_the_event_and_never_goes_back():
    loop = SteppedLoop(now=5.0)
    loop.advance(5.0)
    loop.advance(7.5)
    assert loop.time() == 7.5
    for now in (7.4, math.nan):
        with pytest.raises(ValueError, match="time would go back from 7.5"):
            loop.advance(now)


def test_a_sleep_ends_when_its_timer_is_fired():
    loop = SteppedLoop()

    async def workflow():
        await asyncio.sleep(30)
        return loop.time()

    root = loop.start(workflow())
    assert loop.said == ["timer 1 at 130"]
    loop.due("1")
    assert root.result() == 130.0
    assert loop.said == ["timer 1 at 130"]  # a timer that fired is not cancelled as well


def test_a_timeout_that_is_not_reached_cancels_its_timer():
    loop = SteppedLoop()

    async def workflow():
        async with asyncio.timeout(30):
            return await loop.node()

    root = loop.start(workflow())
    loop.answer("2", "done")
    assert root.result() == "done"
    assert loop.said == ["timer 1 at 130", "node 2", "cancel 1"]


def test_a_timeout_that_comes_due_raises_in_its_block():
    loop = SteppedLoop()

    async def workflow():
        try:
            async with asyncio.timeout(30):
                await loop.node()
        except TimeoutError:
            return "late"

    root = loop.start(workflow())
    loop.due("1")
    assert root.result() == "late"


@pytest.mark.parametrize("delay", [0, -1, -math.inf])
def test_a_timeout_that_is_over_at_once_needs_no_durable_timer(delay: float):
    loop = SteppedLoop()

    async def workflow():
        async with asyncio.timeout(delay):
            await loop.node()

    root = loop.start(workflow())
    assert isinstance(root.exception(), TimeoutError)
    assert loop.said == ["node 1"]


@pytest.mark.parametrize("delay", [0, -1])
def test_a_callback_without_delay_runs_at_once(delay: int):
    loop, calls = SteppedLoop(), []
    loop.call_later(delay, calls.append, "ran")
    loop.call_later(delay, calls.append, "cancelled").cancel()
    loop.call_at(loop.time() + delay, calls.append, "too")
    loop.run_ready()
    assert calls == ["ran", "too"]
    assert loop.said == []


def test_what_never_comes_due_needs_no_timer_and_nan_is_refused():
    loop = SteppedLoop()
    root = loop.start(asyncio.sleep(math.inf))
    assert not root.done()
    assert loop.said == []
    with pytest.raises(ValueError, match="NaN"):
        loop.call_later(math.nan, print)


def test_sleep_zero_only_lets_others_run():
    loop, order = SteppedLoop(), []

    async def other():
        order.append("other")

    async def workflow():
        other_task = asyncio.create_task(other())
        await asyncio.sleep(0)
        order.append("workflow")
        await other_task

    loop.start(workflow())
    assert order == ["other", "workflow"]
    assert loop.said == []


def test_firing_a_cancelled_or_fired_timer_does_nothing():
    loop, calls = SteppedLoop(), []
    cancelled, fired = loop.call_later(1, calls.append, "cancelled"), loop.call_later(1, calls.append, "fired")
    cancelled.cancel()
    for handle in (cancelled, fired, fired):
        loop.fire(handle)
    loop.run_ready()
    loop.fire(fired)
    fired.cancel()
    loop.run_ready()
    assert calls == ["fired"]
    assert loop.said == ["timer t1 at 101", "timer t2 at 101", "cancel t1"]
