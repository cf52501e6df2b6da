"""What does not depend on time depends on nothing but the results of the steps: not on the order in which they came,
not on pauses, not on a bug that was mended on the way."""

from __future__ import annotations

from typing import Any
from zlib import crc32

from hypothesis import given
from hypothesis import strategies as st

from ductor_stream.engine.events import AttemptFinished, Redeployed
from ductor_stream.engine.state import Node
from unit.engine.driver import Driver, abandoning
from unit.engine.programs import choices, examples, function_of, simple, timeless, workflow


def _answer(driver: Driver, node: Node) -> None:
    """Its answer is a function of its place and attempt: some fail once before they succeed."""
    if node.attempt == 1 and crc32(node.node_id.encode()) % 3 == 0:
        driver.fail(node.node_id)
    else:
        driver.finish(node.node_id, f"{node.name} at {node.node_id}")


def _waiting(driver: Driver) -> list[Node]:
    return [node for node in driver.state.nodes.values() if node.status == "dispatched"]


def _settle(driver: Driver, order: list[int], pauses: bool = False) -> Driver:
    """Answer whatever waits, in an order by choice, and let back-offs pass, until the run is at its end."""
    for turn in range(10_000):
        if driver.state.closed:
            return driver
        number = order[turn % len(order)]
        if pauses and number % 3 == 0:
            _pause_for_a_while(driver, number)
        if driver.state.closed:
            return driver
        waiting = _waiting(driver)
        if waiting:
            _answer(driver, waiting[number % len(waiting)])
        else:
            driver.pass_time()
    raise AssertionError(f"no end; open: {driver.state.nodes}")


def _pause_for_a_while(driver: Driver, number: int) -> None:
    """Some of the answers come while the run is paused; then nothing new is dispatched."""
    driver.order("pause")
    sent = driver.dispatched()
    for node in _waiting(driver)[: number % 4]:
        _answer(driver, node)
    assert driver.dispatched() == sent
    driver.lose()
    driver.order("resume")


def _outcomes(driver: Driver) -> dict[str, bytes | None]:
    finished = [record.event for record in driver.records if isinstance(record.event, AttemptFinished)]
    return {event.node_id: event.output for event in finished if event.outcome == "completed"}


def _started(definition: Any) -> Driver:
    driver = Driver(definition)
    driver.start()
    return driver


@examples(120)
@given(timeless, choices, choices)
@abandoning()
def test_results_in_any_order_give_each_node_the_same_outcome(program: Any, one: list[int], other: list[int]) -> None:
    """Protocol 16: node ids come from places, so branches that run the same step cannot swap results."""
    definition = workflow(function_of(program))
    first = _settle(_started(definition), one)
    second = _settle(_started(definition), other)
    assert first.result == second.result
    assert _outcomes(first) == _outcomes(second)


@examples(120)
@given(timeless, choices, choices)
@abandoning()
def test_a_paused_run_ends_as_one_that_never_was(program: Any, one: list[int], other: list[int]) -> None:
    definition = workflow(function_of(program))
    straight = _settle(_started(definition), one)
    paused = _settle(_started(definition), other, pauses=True)
    assert paused.result == straight.result
    assert _outcomes(paused) == _outcomes(straight)


def _with_bug(program: Any, place: list[int]) -> Any:
    """The program with its n-th step replaced by a call that raises; ``place`` counts down."""
    match program:
        case ("step", _, _):
            place[0] -= 1
            return ("draw", "a bug", 0) if place[0] < 0 <= place[0] + 1 else program
        case (kind, list() as parts):
            return (kind, [_with_bug(part, place) for part in parts])
        case (kind, *parts):
            return (kind, *(_with_bug(part, place) for part in parts))
    return program


@examples(120)
@given(simple, st.integers(0, 4), choices)
@abandoning()
def test_a_run_that_met_a_bug_goes_on_with_mended_code_and_nothing_is_lost(
    program: Any, place: int, order: list[int]
) -> None:
    mended = workflow(function_of(program), digest="mended")
    driver = _started(workflow(function_of(_with_bug(program, [place])), digest="buggy"))
    for number in order:
        if driver.status != "running":
            break
        waiting = _waiting(driver)
        if waiting:
            _answer(driver, waiting[number % len(waiting)])
        else:
            driver.pass_time()
    if driver.status == "suspended":
        assert driver.parked[0] == "bug"
        assert "programs.py:" in driver.parked[1]
        for node in _waiting(driver)[: order[0] % 3]:
            _answer(driver, node)
        driver.deploy(mended)
        driver.hear(Redeployed("mended", "1"))
        assert driver.status in ("running", "completed")
    driver.deploy(mended)
    straight = _settle(_started(mended), order)
    assert _settle(driver, order).result == straight.result
    assert _outcomes(driver) == _outcomes(straight)
