"""Child runs that the code starts after a reset: their ids, in the state, in its fold, and in every replay."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from ductor_stream.engine.actions import StartChild, TellParent
from ductor_stream.engine.events import ChildFinished, Parent, RunStarted
from ductor_stream.engine.ids import MAX_RUN_ID_BYTES, is_next_id, next_id
from ductor_stream.engine.state import NodeCreated
from ductor_stream.engine.tick import rebuild
from unit.engine.driver import Driver, abandoning, folded_as_lived
from unit.engine.programs import CHILD, SIGNALS, STEPS, workflow


@pytest.fixture(autouse=True)
def _no_coroutine_is_left() -> Iterator[None]:
    with abandoning():
        yield


def _ids(driver: Driver) -> list[str]:
    return [start.node.child.run_id for start in driver.done(StartChild)]


async def fires(run: Any) -> Any:
    await run.step(STEPS["a"], 1)
    await run.wait_signal(SIGNALS["x"])
    begun = await run.child(CHILD, 1, detach=True)
    return [begun, await run.child(CHILD, 2)]


@pytest.mark.parametrize("lost", [False, True])
def test_a_reset_names_what_it_begins_by_its_execution_in_every_replay(lost: bool) -> None:
    """To a transition that waits for the signal: it is told again, so that the children begin with the fork itself."""
    driver = Driver(workflow(fires))
    driver.start()
    driver.finish("1")
    waits = driver.records[-1].seq
    driver.send("x")
    expected = ["r/1/3", "r/1/4"]
    for execution in (2, 3):
        driver.order("reset", to_transition=waits)
        expected += [f"r/1/3/~{execution}", f"r/1/4/~{execution}"]
        assert _ids(driver) == expected
        folded_as_lived(driver)
        if lost:
            driver.lose()
    driver.hear(ChildFinished(3, "4", "r/1/4/~3", "completed", b"5"))
    assert driver.result == ["r/1/3/~3", 5]
    folded_as_lived(driver)


def test_a_retry_of_a_reset_goes_on_with_the_ids_of_the_reset() -> None:
    async def fails_once(run: Any) -> Any:
        first = await run.child(CHILD, 1, detach=True)
        await run.step(STEPS["a"], 1)
        return [first, await run.child(CHILD, 1, detach=True)]

    driver = Driver(workflow(fails_once))
    driver.start()
    driver.order("reset", to_transition=1)
    driver.fail("2", retryable=False)
    driver.order("retry")
    driver.lose()
    driver.finish("2")
    assert driver.result == ["r/1/1", "r/1/3/~2"]
    folded_as_lived(driver)


def test_a_history_in_which_a_reset_began_a_child_under_its_old_id_goes_on() -> None:
    """As an earlier release wrote it down."""
    driver = Driver(workflow(fires))
    driver.start()
    driver.finish("1")
    driver.order("reset", to_node="1")
    driver.finish("1")
    driver.send("x")
    *before, last = driver.records
    assert last.decisions is not None
    old = [
        msgspec.structs.replace(each, child=msgspec.structs.replace(each.child, run_id=f"r/1/{each.node_id}"))
        if isinstance(each, NodeCreated) and each.child is not None
        else each
        for each in last.decisions
    ]
    driver.records = [*before, msgspec.structs.replace(last, decisions=old)]
    driver.committed = rebuild(driver.run_id, driver.history())
    driver.lose()
    driver.hear(ChildFinished(2, "4", "r/1/4", "completed", b"5"))
    assert driver.result == ["r/1/3", 5]


def test_a_start_anew_is_of_a_retry_or_reset_and_never_of_a_detached_child() -> None:
    driver = Driver(workflow(fires))
    driver.start()
    driver.finish("1")
    driver.send("x")
    driver.order("reset", to_node="1")
    driver.finish("1")
    words = [start.on_conflict for start in driver.done(StartChild)]
    assert words == ["use_existing", "use_existing", "use_existing", "restart_if_closed"]


@pytest.mark.parametrize("ended", [False, True])
def test_a_reset_of_an_open_child_tells_its_parent_nothing_yet(ended: bool) -> None:
    """The end of the execution that the reset cuts off is nobody's answer; what it has told before stands."""

    async def both(run: Any) -> Any:
        return [await run.step(STEPS["a"], 1), await run.step(STEPS["a"], 2)]

    driver = Driver(workflow(both))
    driver.start(parent=Parent("p", 1, "1"))
    driver.finish("1")
    if ended:
        driver.finish("2", "once")
    driver.order("reset", to_node="2")
    assert len(driver.done(TellParent)) == ended
    driver.lose()
    driver.finish("2", "twice")
    told = [(each.child_execution, each.event.result) for each in driver.done(TellParent)]
    assert told == [(1, b'[null,"once"]')] * ended + [(2, b'[null,"twice"]')]
    folded_as_lived(driver)


HERS = Parent("p", 2, "4.1")


@pytest.mark.parametrize(
    ("parent", "on_conflict", "begins"),
    [
        (Parent("p", 3, "4.1"), "restart_if_closed", True),
        (Parent("p", 3, "4.1"), "use_existing", False),
        (Parent("p", 1, "4.1"), "restart_if_closed", False),
        (Parent("p", 3, "4.2"), "restart_if_closed", False),
        (Parent("q", 3, "4.1"), "restart_if_closed", False),
        (HERS, "restart_if_closed", False),
    ],
)
@pytest.mark.parametrize("closed", [True, False])
def test_a_child_that_ended_begins_again_for_the_same_node_of_a_later_execution(
    parent: Parent, on_conflict: Any, begins: bool, closed: bool
) -> None:
    async def simple(run: Any) -> Any:
        return await run.step(STEPS["a"], 1)

    driver = Driver(workflow(simple))
    driver.start(parent=HERS)
    if closed:
        driver.finish("1", "once")
    done = driver.hear(RunStarted("wf", "1", b"null", "s2", on_conflict, parent=parent))
    if begins and closed:
        assert (driver.header.execution, driver.header.parent, driver.status) == (2, parent, "running")
        driver.finish("1", "twice")
        [told] = [each for each in driver.done(TellParent) if each.parent == parent]
        assert told.event.result == b'"twice"'
        folded_as_lived(driver)
        return
    assert (done.records, driver.header.execution) == ([], 1)
    told = [each.event.status for each in done.actions if isinstance(each, TellParent)]
    assert told == (["refused"] if parent != HERS else ["completed"] if closed else [])


def test_no_other_id_is_taken_for_one_of_a_reset() -> None:
    longest = "r" * MAX_RUN_ID_BYTES
    assert is_next_id("r/1/2/~3", "r/1/2")
    assert is_next_id(next_id(longest, 12), longest)
    assert not any(
        is_next_id(found, "r/1/2") for found in ("", "r/1/2", "r/1/2/~", "r/1/2/~x", "r/1/3/~3", "r/1/2/~03", "r/1/2/3")
    )
