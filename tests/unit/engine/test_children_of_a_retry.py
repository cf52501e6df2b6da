"""A run that is retried goes on with the children that it has: what they did already is not done twice."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from ductor_stream.engine.actions import CommandChild, EmitLifecycle, StartChild, TellParent
from ductor_stream.engine.events import ChildFinished, CommandReceived, Failure, Forked, Parent, Redeployed, RunStarted
from ductor_stream.errors import TerminalError
from unit.engine.driver import Driver, abandoning, folded_as_lived
from unit.engine.programs import CHILD, STEPS, workflow

NO = Failure("user", "Oops", "no", retryable=False)
HERS = Parent("p", 2, "4.1")
LATER = Parent("p", 3, "4.1")


@pytest.fixture(autouse=True)
def _no_coroutine_is_left() -> Iterator[None]:
    with abandoning():
        yield


async def both(run: Any) -> Any:
    return [await run.step(STEPS["a"], 1), await run.step(STEPS["b"], 2)]


def wished(parent: Parent = LATER, since: int = 2) -> RunStarted:
    """What a retried parent asks for."""
    return RunStarted("wf", "1", b"null", f"start/{parent.execution}", parent=parent, since=since)


def child(status: str) -> Driver:
    """A child run that has come as far as that."""
    driver = Driver(workflow(both))
    driver.start(parent=HERS)
    if status == "begun":
        return driver
    driver.finish("1", "one")
    match status:
        case "failed":
            driver.finish("2", failure=NO)
        case "completed":
            driver.finish("2", "two")
        case "cancelled" | "terminated":
            driver.hear(CommandReceived("cancel" if status == "cancelled" else "terminate", "c", parent=HERS))
        case "paused":
            driver.order("pause")
    driver.actions.clear()
    driver.lose()
    assert driver.status == status
    return driver


def told(driver: Driver) -> list[tuple[Parent, str]]:
    return [(each.parent, each.event.status) for each in driver.done(TellParent)]


def test_a_parent_that_is_retried_asks_for_the_child_that_it_has() -> None:
    async def asks(run: Any) -> Any:
        return await run.child(CHILD, 1)

    driver = Driver(workflow(asks))
    driver.start()
    for execution in (1, 2):
        driver.hear(ChildFinished(execution, "1", "r/1/1", "failed", None, NO))
        assert driver.status == "failed"
        driver.order("retry")
        folded_as_lived(driver)
    driver.lose()
    starts = driver.done(StartChild)
    assert {each.node.child.run_id for each in starts} == {"r/1/1"}
    assert [(each.execution, each.since) for each in starts] == [(1, 0), (2, 1), (3, 1)]
    driver.hear(ChildFinished(2, "1", "r/1/1", "completed", b"2"))
    assert driver.status == "running", "the answer for an earlier execution"
    driver.hear(ChildFinished(3, "1", "r/1/1", "completed", b"3"))
    assert driver.result == 3
    assert not driver.done(CommandChild)


def test_what_a_reset_began_anew_is_what_a_retry_after_it_goes_on_with() -> None:
    async def asks(run: Any) -> Any:
        return await run.child(CHILD, 1)

    driver = Driver(workflow(asks))
    driver.start()
    driver.order("reset", to_node="1")
    driver.hear(ChildFinished(2, "1", "r/1/1/~2", "failed", None, NO))
    driver.order("retry")
    last = driver.done(StartChild)[-1]
    assert (last.node.child.run_id, last.since) == ("r/1/1/~2", 2)
    folded_as_lived(driver)


def test_a_child_that_failed_is_retried_with_its_parent() -> None:
    driver = child("failed")
    driver.hear(wished())
    assert (driver.status, driver.header.execution, driver.header.parent) == ("running", 2, LATER)
    assert isinstance(driver.records[-1].event, Forked)
    assert (driver.node("2").key_execution, "1" in driver.state.nodes) == (1, False)
    [event] = driver.done(EmitLifecycle)
    assert event.reason == "retry start/3: its parent was retried"
    folded_as_lived(driver)
    driver.lose()
    driver.finish("2", "two")
    assert driver.result == ["one", "two"]
    assert told(driver) == [(LATER, "completed")]


def test_the_parent_may_be_retried_again_and_again() -> None:
    driver = child("failed")
    for execution in (3, 4, 5):
        driver.hear(wished(Parent("p", execution, "4.1")))
        driver.finish("2", failure=NO)
        driver.lose()
        folded_as_lived(driver)
    assert told(driver) == [(Parent("p", execution, "4.1"), "failed") for execution in (3, 4, 5)]
    assert driver.done(EmitLifecycle)[-1].type == "run.failed"


def test_a_child_that_completed_says_so_again_and_does_nothing() -> None:
    """Its outcome may have been what the parent failed at, or somebody has retried the child meanwhile."""
    driver = child("completed")
    driver.hear(wished())
    assert (driver.status, driver.header.execution) == ("completed", 1)
    assert told(driver) == [(LATER, "completed")]
    assert len(driver.actions) == 1


@pytest.mark.parametrize("status", ["begun", "paused"])
def test_a_child_that_still_runs_goes_on_and_tells_who_waits_now(status: str) -> None:
    """Left alone by parent_close="abandon": a second one beside it would do everything twice."""
    driver = child(status)
    driver.actions.clear()
    driver.hear(wished())
    assert (driver.header.execution, driver.header.parent, driver.actions) == (1, LATER, [])
    folded_as_lived(driver)
    driver.hear(CommandReceived("terminate", "late", parent=HERS))
    assert driver.status in ("running", "paused"), "an order of the execution that was retried"
    if status == "paused":
        driver.order("resume")
    else:
        driver.finish("1", "one")
    driver.finish("2", "two")
    assert told(driver) == [(LATER, "completed")]
    folded_as_lived(driver)


@pytest.mark.parametrize("adopted", ["failed", "begun", "completed"])
def test_whoever_waits_for_a_child_hears_of_it_after_a_reset_of_the_child_too(adopted: str) -> None:
    """What the reset keeps is of a time when an earlier execution waited."""
    driver = child(adopted)
    driver.hear(wished())
    driver.actions.clear()
    driver.order("reset", to_node="1")
    assert driver.header.parent == LATER
    folded_as_lived(driver)
    driver.finish("1", "one")
    driver.finish("2", "two")
    assert told(driver) == [(LATER, "completed")]
    assert not driver.hear(CommandReceived("terminate", "hers", parent=HERS)).records


def test_a_child_that_the_closing_event_began_is_asked_to_go_on_when_it_is_decided_again() -> None:
    """Left alone by parent_close="abandon", it is there, although nothing of it is in what the retry keeps."""

    async def asks(run: Any) -> Any:
        turn = await run.step(STEPS["a"], 1)
        below = asyncio.create_task(run.child(CHILD, 1, run_id="given", parent_close="abandon"))
        await asyncio.sleep(0)
        if turn == 1:
            raise TerminalError("no")
        return await below

    driver = Driver(workflow(asks))
    driver.start()
    driver.finish("1", 1)
    assert driver.status == "failed"
    driver.order("retry")
    driver.finish("1", 2)
    starts = driver.done(StartChild)
    assert [(each.execution, each.node.child.run_id, each.since) for each in starts] == [
        (1, "given", 0),
        (2, "given", 1),
    ]
    driver.order("reset", to_node="1")
    driver.finish("1", 2)
    assert (driver.done(StartChild)[-1].since, driver.done(StartChild)[-1].on_conflict) == (3, "restart_if_closed")
    folded_as_lived(driver)


def test_a_retry_keeps_the_version_that_was_pinned_as_the_run_failed() -> None:
    async def breaks(run: Any) -> Any:
        raise TerminalError("no")

    driver = Driver()
    driver.hear(RunStarted("wf", "", b"null", "s1"), at=1_000)
    assert driver.status == "suspended"
    driver.deploy(workflow(breaks))
    driver.hear(Redeployed("code", "1"))
    assert driver.status == "failed"
    driver.order("retry")
    assert (driver.header.version, driver.status) == ("1", "failed")
    folded_as_lived(driver)


@pytest.mark.parametrize("status", ["cancelled", "terminated"])
def test_a_child_that_was_ended_with_its_parent_begins_its_next_execution(status: str) -> None:
    driver = child(status)
    driver.hear(wished())
    assert (driver.status, driver.header.execution, driver.header.parent) == ("running", 2, LATER)
    assert driver.node("1").key_execution == 0, "whatever its clean-up took back is done again"
    folded_as_lived(driver)


def test_a_child_that_failed_at_its_start_begins_again() -> None:
    driver = Driver(workflow(both, takes_input=True, input_type=int))
    driver.start(parent=HERS)
    assert driver.status == "failed"
    driver.hear(wished())
    assert driver.header.execution == 2
    folded_as_lived(driver)


def test_one_that_is_not_there_any_more_is_started() -> None:
    driver = Driver(workflow(both))
    driver.hear(wished(), at=1_000)
    assert (driver.status, driver.header.execution, driver.header.parent) == ("running", 1, LATER)
    folded_as_lived(driver)


@pytest.mark.parametrize("status", ["failed", "completed", "cancelled", "begun"])
@pytest.mark.parametrize(
    ("parent", "since"), [(Parent("q", 3, "4.1"), 2), (Parent("p", 3, "4.2"), 2), (Parent("p", 9, "4.1"), 8)]
)
def test_whose_child_it_is_not_is_refused(status: str, parent: Parent, since: int) -> None:
    """Another run, another node, or the same run before it was started anew: an id of the code's is a guard."""
    driver = child(status)
    driver.actions.clear()
    done = driver.hear(wished(parent, since))
    assert (done.records, driver.header.parent, told(driver)) == ([], HERS, [(parent, "refused")])


def test_nobodys_child_is_refused_too() -> None:
    driver = Driver(workflow(both))
    driver.start()
    driver.finish("1", failure=NO)
    assert (driver.hear(wished()).records, told(driver)) == ([], [(LATER, "refused")])
