"""A run that its owner lets go of is freed at once: owners end thousands a second, and evict as many."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from ductor_stream.engine.events import Failure
from ductor_stream.engine.planners.function import FunctionLive
from ductor_stream.engine.planners.run import Run
from unit.engine.driver import Driver, abandoning
from unit.engine.programs import signal, step, workflow

_work, _go = step("work"), signal("go")


async def _in_a_step(run: Run) -> Any:
    return await run.step(_work)  # type: ignore[arg-type]


async def _for_a_signal(run: Run) -> Any:
    return await run.wait_signal(_go)  # type: ignore[arg-type]


async def _asleep(run: Run) -> None:
    async with asyncio.timeout(60):
        await asyncio.sleep(30)


async def _among_tasks(run: Run) -> None:
    async with asyncio.TaskGroup() as group:
        for _ in range(3):
            group.create_task(_in_a_step(run))
        group.create_task(_for_a_signal(run))


async def _gathered(run: Run) -> Any:
    try:
        return await asyncio.gather(_in_a_step(run), _in_a_step(run))
    finally:
        await _in_a_step(run)


@pytest.fixture
def uncollected() -> Iterator[None]:
    """Nobody but the reference counts frees anything."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _watched(driver: Driver) -> list[weakref.ref[Any]]:
    assert isinstance(driver.live, FunctionLive)
    loop = driver.live.loop
    return [weakref.ref(found) for found in (driver.live, loop, *loop.live_tasks())]


@pytest.mark.usefixtures("uncollected")
@pytest.mark.parametrize("function", [_in_a_step, _for_a_signal, _asleep, _among_tasks, _gathered])
def test_one_that_is_let_go_of(function: Callable[..., Any]) -> None:
    driver = Driver(workflow(function))
    with abandoning():
        driver.start()
        watched = _watched(driver)
        driver.lose()
    assert [ref() for ref in watched] == [None] * len(watched)


@pytest.mark.usefixtures("uncollected")
@pytest.mark.parametrize("failure", [None, Failure("user", "Oops", "no", retryable=False)])
def test_one_that_ends(failure: Failure | None) -> None:
    driver = Driver(workflow(_in_a_step))
    with abandoning():
        driver.start()
        watched = _watched(driver)
        driver.finish("1", 5, failure=failure)
    assert driver.state.closed
    assert [ref() for ref in watched] == [None] * len(watched)
