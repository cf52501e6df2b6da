"""Time never goes back, no timer is early, and each fires at most once, whatever the clocks of the owners say."""

from __future__ import annotations

import asyncio
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from ductor_stream.engine.events import TimerFired
from ductor_stream.engine.state import LATEST_MS, NodeCreated, Record, encode_records
from ductor_stream.engine.tick import Stamped, due_events, wake_at
from unit.engine.driver import Driver, abandoning
from unit.engine.programs import STEPS, choices, examples, function_of, programs, workflow

steps_of_the_clock = st.lists(st.integers(-5_000, 20_000), min_size=4, max_size=20)


def _created(records: list[Record]) -> dict[str, int]:
    """When each timer is due."""
    made = [d for record in records for d in record.decisions or () if isinstance(d, NodeCreated)]
    return {d.node_id: d.due_at for d in made if d.due_at is not None}


def _fired(records: list[Record]) -> list[tuple[str, int, int]]:
    events = [(record.event, record.now) for record in records if isinstance(record.event, TimerFired)]
    return [(event.node_id, event.generation, now) for event, now in events]


@examples(150)
@given(programs, choices, steps_of_the_clock)
@abandoning()
def test_time_never_goes_back_and_no_timer_is_early(program: Any, chosen: list[int], steps: list[int]) -> None:
    """The owner's clock steps to and fro, and it looks at the run whenever it likes."""
    driver = Driver(workflow(function_of(program)))
    driver.start(now=100_000)
    clock = 100_000
    for number, choice in enumerate(chosen):
        if driver.state.closed:
            break
        driver.clock = clock = clock + steps[number % len(steps)]
        for event in due_events(driver.state, clock):
            driver.hear(event)
        found = [option for option in driver.possible(choice) if option != driver.pass_time]
        if found and not driver.state.closed:
            found[choice % len(found)]()
    times = [record.now for record in driver.records]
    assert times == sorted(times)
    due, fired = _created(driver.records), _fired(driver.records)
    assert len(fired) == len({(node_id, generation) for node_id, generation, _ in fired})
    assert all(now >= due[node_id] for node_id, _, now in fired if node_id in due)


@examples(60)
@given(programs, choices, st.integers(1, 10_000))
@abandoning()
def test_a_timer_that_fires_before_its_time_changes_nothing(program: Any, chosen: list[int], early: int) -> None:
    driver = Driver(workflow(function_of(program))).run_through(chosen)
    for node in driver.state.nodes.values():
        if node.due_at is not None and node.due_at - early >= driver.header.now:
            fired = TimerFired(driver.header.execution, node.node_id, node.generation)
            assert driver.apply(Stamped(node.due_at - early, fired)).records == []


@examples(200)
@given(st.integers(1_500_000_000_000, 4_000_000_000_000), st.floats(0.001, 10**7))
@abandoning()
def test_a_sleep_is_rounded_up_to_the_millisecond(start: int, seconds: float) -> None:
    async def sleeps(run: Any) -> None:
        await asyncio.sleep(seconds)

    driver = Driver(workflow(sleeps))
    driver.start(now=start)
    due = driver.node("1").due_at
    assert due is not None
    # A float holds times of this century to half a microsecond.
    assert -0.01 <= (due - start) - seconds * 1000 <= 1.01


def test_a_sleep_beyond_all_calendars_can_still_be_written() -> None:
    async def sleeps(run: Any) -> None:
        await asyncio.sleep(1e300)

    driver = Driver(workflow(sleeps))
    driver.start()
    assert wake_at(driver.state) == LATEST_MS
    assert encode_records(driver.records)


def test_an_endless_timeout_needs_no_timer() -> None:
    async def waits(run: Any) -> Any:
        async with asyncio.timeout(None):
            return await run.step(STEPS["a"], 1)

    driver = Driver(workflow(waits))
    driver.start()
    assert wake_at(driver.state) is None


def test_times_of_the_workflow_are_those_of_its_events() -> None:
    async def looks(run: Any) -> list[str]:
        seen = [run.now().isoformat()]
        await run.step(STEPS["a"], 1)
        seen.append(run.now().isoformat())
        return seen

    driver = Driver(workflow(looks))
    driver.start(now=1_700_000_000_000)
    driver.lose()
    driver.finish("1", at=1_700_000_000_250)
    assert driver.result == ["2023-11-14T22:13:20+00:00", "2023-11-14T22:13:20.250000+00:00"]
