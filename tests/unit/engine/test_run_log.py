"""What a run logs is written once, also in the very event that ends or suspends it; what its cleanup logs is not."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ductor_stream.engine.actions import EmitLifecycle
from unit.engine.driver import Driver
from unit.engine.programs import step, workflow

ONE = step("one")


def logging(then: str) -> Any:
    """A workflow that logs before and after its step, and ends like that."""

    async def program(run: Any) -> Any:
        run.log.info("begins")
        try:
            await run.step(ONE)
            run.log.info("goes on", then=then)
            if then == "bug":
                raise KeyError(then)
            if then == "again":
                run.continue_as_new()
            if then == "waits":
                await run.step(ONE)
        finally:
            if then == "waits":
                run.log.info("is dropped")

    return program


@pytest.mark.parametrize("then", ["bug", "again", "ends"])
def test_lines_of_the_last_event_are_not_lost(then: str) -> None:
    driver = Driver(workflow(logging(then)))
    assert [line[1] for line in driver.start().lines] == ["begins"]
    done = driver.finish("1", 1)
    assert done.live is None
    assert done.lines == [("info", "goes on", {"then": then})]


def test_a_replay_is_silent_and_so_is_what_is_dropped() -> None:
    driver = Driver(workflow(logging("waits")))
    driver.start()
    driver.lose()
    assert [line[1] for line in driver.finish("1", 1).lines] == ["goes on"]
    terminated = driver.order("terminate")
    assert terminated.lines == []
    assert [action.type for action in terminated.actions if isinstance(action, EmitLifecycle)] == ["run.terminated"]


def test_a_task_that_failed_and_nobody_looked_is_told_when_the_run_ends() -> None:
    """As asyncio would, but at a moment that is the same for everybody."""

    async def forgets(run: Any) -> Any:
        async def fails() -> None:
            raise ValueError("unseen")

        task = asyncio.create_task(fails(), name="forgotten")
        await run.step(ONE)
        return task.done()

    driver = Driver(workflow(forgets))
    driver.start()
    done = driver.finish("2", 1)
    assert driver.result is True
    [(level, message, fields)] = done.lines
    assert (level, message) == ("error", "a task failed and nobody looked")
    assert fields == {"task": "forgotten", "error": "ValueError: unseen"}


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
def test_what_would_end_the_process_is_a_bug_of_the_run(kind: type[BaseException]) -> None:
    """R11: it must not take its owner along."""

    async def quits(run: Any) -> Any:
        await run.step(ONE)
        raise kind("enough")

    driver = Driver(workflow(quits))
    driver.start()
    driver.finish("1", 1)
    code, message = driver.parked
    assert code == "bug"
    assert f"{kind.__name__}: enough" in message
