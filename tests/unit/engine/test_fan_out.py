"""Fan-out over thousands of items (R10): work, records and memory are linear in them; order, failures, the rest."""

from __future__ import annotations

import asyncio
import sys
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest

from ductor_stream.engine.actions import DispatchAttempt, StopAttempt
from ductor_stream.engine.events import AttemptFinished, Failure
from ductor_stream.engine.tick import Stamped
from ductor_stream.errors import StepError
from unit.engine.driver import Driver
from unit.engine.programs import STEPS, workflow

BATCH = 100
"""Results per tick: as they come when many workers are at it."""
FEW, MANY = 1_000, 10_000
LINEAR = 1.2 * MANY / FEW
"""What ten times the items may cost, in calls and bytes; twelve times at the most, where a square would be a hundred."""


def gathers(items: int) -> Driver:
    """A run that awaits a step for each item at once."""

    async def gather(run: Any) -> Any:
        return await asyncio.gather(*(run.step(STEPS["a"], item) for item in range(items)))

    return Driver(workflow(gather))


def maps(items: int, in_flight: int | None = 200, on_error: Any = "cancel") -> Driver:
    """A run that maps a step over the items; how it failed, if it did."""

    async def mapped(run: Any) -> Any:
        try:
            found = await run.map(STEPS["a"], range(items), max_in_flight=in_flight, on_error=on_error)
        except StepError as error:
            return error.type
        return [each.type if isinstance(each, StepError) else each for each in found]

    return Driver(workflow(mapped))


def answer(driver: Driver, fails: Callable[[int], bool] = lambda place: False) -> None:
    """All steps, a batch per tick and the latest first; each says its place among the items."""
    while not driver.state.closed:
        nodes = list(driver.state.nodes.values())[-BATCH:]
        driver.apply(*(Stamped(driver.header.now + 1, _said(node, fails)) for node in reversed(nodes)))


def _said(node: Any, fails: Callable[[int], bool]) -> AttemptFinished:
    place = int(node.input.strip(b"[]"))
    if fails(place):
        failure = Failure("user", "Oops", "no", retryable=False)
        return AttemptFinished(1, node.node_id, node.generation, "failed", None, failure)
    return AttemptFinished(1, node.node_id, node.generation, "completed", b"%d" % place)


def calls_of(work: Callable[[], object]) -> int:
    """How many functions are called, ours and C's: a measure of work that no busy machine changes."""
    count = 0

    def see(frame: object, event: str, argument: object) -> None:
        nonlocal count
        count += 1

    sys.setprofile(see)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


def costs(make: Callable[[int], Driver], items: int) -> tuple[int, int, int]:
    """Calls to live through it, calls to rebuild it shortly before its end, bytes of its records."""
    driver = make(items)

    def lived() -> None:
        driver.start()
        answer(driver, lambda place: False)

    lived_calls = calls_of(lived)
    again = Driver(*driver.definitions.values())
    again.start()
    answer_but_one(again)
    again.lose()
    rebuilt = calls_of(lambda: answer(again))
    assert driver.result == again.result == list(range(items))
    return lived_calls, rebuilt, sum(map(len, driver.entries))


def answer_but_one(driver: Driver) -> None:
    """All steps but the last that is left."""
    while True:
        nodes = list(driver.state.nodes.values())
        taken = nodes[-BATCH:] if len(nodes) > BATCH else nodes[1:]
        if not taken:
            return
        driver.apply(*(Stamped(driver.header.now + 1, _said(node, lambda place: False)) for node in taken))


@pytest.mark.parametrize("make", [gathers, maps])
def test_ten_times_the_items_cost_ten_times_the_work(make: Callable[[int], Driver]) -> None:
    few, many = costs(make, FEW), costs(make, MANY)
    grown = [round(b / a, 1) for a, b in zip(few, many, strict=True)]
    assert max(grown) <= LINEAR, (grown, few, many)


@pytest.mark.parametrize("make", [gathers, lambda items: maps(items, None)])
def test_an_open_item_costs_a_few_kilobytes(make: Callable[[int], Driver]) -> None:
    """State, coroutine, task and records of a run with all its items out."""
    driver = make(FEW)
    tracemalloc.start()
    try:
        driver.start()
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(driver.state.nodes) == FEW
    assert held / FEW < 8_000


def test_one_failure_of_thousands_stops_the_rest() -> None:
    driver = maps(MANY, None)
    driver.start()
    answer(driver, lambda place: place == MANY - BATCH - 1)
    assert driver.result == "Oops"
    assert len(driver.done(DispatchAttempt)) == MANY
    assert len(driver.done(StopAttempt)) == MANY - BATCH - 1, "all but a batch that was done, and the one that failed"


def test_a_bounded_map_sends_no_more_after_a_failure() -> None:
    driver = maps(MANY)
    driver.start()
    answer(driver, lambda place: place == 150)
    assert driver.result == "Oops"
    assert len(driver.done(DispatchAttempt)) <= 200 + 200
    outcomes = len(driver.done(DispatchAttempt)) - len(driver.done(StopAttempt))
    assert 0 < outcomes <= 200, "whatever was out and not answered is stopped"


def test_failures_are_collected_in_the_places_of_their_items() -> None:
    driver = maps(MANY, on_error="collect")
    driver.start()
    answer(driver, lambda place: place % 1_000 == 7)
    assert driver.result == ["Oops" if place % 1_000 == 7 else place for place in range(MANY)]
    assert driver.done(StopAttempt) == []


def test_a_failure_in_a_gather_leaves_the_others_alone_and_is_raised_at_once() -> None:
    """As asyncio has it: who wants the rest stopped takes a TaskGroup or a map."""

    async def gather(run: Any) -> Any:
        steps = [asyncio.ensure_future(run.step(STEPS["a"], item)) for item in range(10)]
        try:
            await asyncio.gather(*steps)
        except StepError as error:
            return [error.type, await asyncio.gather(*steps[:9])]

    driver = Driver(workflow(gather))
    driver.start()
    answer(driver, lambda place: place == 9)
    assert driver.result == ["Oops", list(range(9))]
    assert driver.done(StopAttempt) == []


def test_a_task_group_stops_the_rest() -> None:
    async def group(run: Any) -> Any:
        try:
            async with asyncio.TaskGroup() as tasks:
                for item in range(FEW):
                    tasks.create_task(run.step(STEPS["a"], item))
        except* StepError as errors:
            failed = len(errors.exceptions)
        return failed

    driver = Driver(workflow(group))
    driver.start()
    answer(driver, lambda place: place == FEW - 1)
    assert driver.result == 1
    assert len(driver.done(StopAttempt)) == FEW - 1
