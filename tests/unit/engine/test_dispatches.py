"""What is sent after a commit, and what no longer is (R4, protocol 14)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given

from ductor_stream.engine.actions import CloseAttempt, CommandChild, DispatchAttempt, StartChild, StopAttempt
from ductor_stream.engine.events import (
    AttemptFinished,
    AttemptTimedOut,
    CommandReceived,
    Failure,
    RunStarted,
    SignalReceived,
    TimerFired,
)
from ductor_stream.engine.tick import Stamped
from unit.engine.driver import Driver, abandoning
from unit.engine.programs import CHILD, SIGNALS, STEPS, choices, examples, function_of, programs, workflow

A, B, C = STEPS["a"], STEPS["b"], STEPS["c"]
START = Stamped(1_000, RunStarted("wf", "1", b"null", "s1"))


def names(actions: list[Any]) -> list[str]:
    """What was sent, by step."""
    return [action.node.name for action in actions if isinstance(action, DispatchAttempt)]


async def one_step(run: Any) -> Any:
    return await run.step(A, 1)


# -- cancel and terminate -----------------------------------------------------------------------


async def with_cleanup_and_shield(run: Any) -> Any:
    kept = asyncio.create_task(run.step(C, "shielded"))
    try:
        await asyncio.gather(run.step(A, 1), asyncio.shield(kept))
    finally:
        await run.step(B, "clean-up")
        await kept


def test_after_a_cancel_only_cleanup_and_shields_are_awaited() -> None:
    driver = Driver(workflow(with_cleanup_and_shield))
    driver.start()
    done = driver.order("cancel")
    assert names(done.actions) == ["b"]
    assert [action.node.name for action in done.actions if isinstance(action, StopAttempt)] == ["a"]
    assert sorted(node.name for node in driver.state.nodes.values()) == ["b", "c"]
    for node_id in list(driver.state.nodes):
        driver.finish(node_id)
    assert driver.status == "cancelled"


def test_a_cancel_in_the_same_batch_as_the_start_sends_no_more_than_that() -> None:
    driver = Driver(workflow(with_cleanup_and_shield))
    driver.apply(START, Stamped(1_001, CommandReceived("cancel", "c")))
    assert sorted(names(driver.actions)) == ["b", "c"]
    assert driver.done(StopAttempt) == []


def test_after_a_terminate_nothing_is_sent() -> None:
    driver = Driver(workflow(with_cleanup_and_shield))
    driver.apply(START, Stamped(1_001, CommandReceived("terminate", "c")))
    assert driver.dispatched() == []
    assert driver.status == "terminated"


@examples(120)
@given(programs, choices)
@abandoning()
def test_a_terminated_run_has_nothing_out_that_was_not_stopped(program: Any, chosen: list[int]) -> None:
    """Any program, at any point: each attempt and child that was sent has ended or is told to."""
    driver = Driver(workflow(function_of(program))).run_through(chosen)
    if driver.state.closed:
        return
    done = driver.order("terminate")
    assert not [action for action in done.actions if isinstance(action, (DispatchAttempt, StartChild))]
    sent = {(a.node.node_id, a.node.generation) for a in driver.done(DispatchAttempt)}
    ended = {(a.node.node_id, a.node.generation) for a in driver.actions if isinstance(a, (CloseAttempt, StopAttempt))}
    assert sent == ended
    assert len(driver.done(CommandChild)) <= len(driver.done(StartChild))


# -- created and dropped in one tick --------------------------------------------------------------


async def gives_up_at_once(run: Any) -> Any:
    for made in (run.step(A, 1), run.child(CHILD, 1)):
        try:
            await asyncio.wait_for(asyncio.ensure_future(made), 0)
        except TimeoutError:
            pass
    return "gave up"


async def races(run: Any) -> Any:
    await run.wait_signal(SIGNALS["x"])
    slow = [asyncio.create_task(run.step(A, 1)), asyncio.create_task(run.child(CHILD, 1))]
    await run.wait_signal(SIGNALS["y"])
    for task in slow:
        task.cancel()
    await asyncio.wait(slow)
    return "won"


def test_what_is_created_and_dropped_on_one_event_is_never_sent() -> None:
    driver = Driver(workflow(gives_up_at_once))
    driver.start()
    assert driver.result == "gave up"
    assert [type(action).__name__ for action in driver.actions] == ["EmitLifecycle", "EmitLifecycle"]


def test_what_is_created_on_one_event_and_dropped_on_the_next_of_the_batch_is_never_sent() -> None:
    signals = [Stamped(1_001 + n, SignalReceived(f"s{n}", name, b"1")) for n, name in enumerate("xy")]
    together, apart = Driver(workflow(races)), Driver(workflow(races))
    together.apply(START, *signals)
    assert [type(action).__name__ for action in together.actions] == ["EmitLifecycle", "EmitLifecycle"]
    for event in (START, *signals):
        apart.apply(event)
    kinds = [type(action) for action in apart.actions]
    assert [kinds.count(k) for k in (DispatchAttempt, StopAttempt, StartChild, CommandChild)] == [1, 1, 1, 1]


def test_a_child_that_outlives_its_parent_is_started_even_then() -> None:
    async def leaves_it(run: Any) -> Any:
        child = asyncio.create_task(run.child(CHILD, 1, parent_close="abandon"))
        await asyncio.sleep(0)
        del child

    driver = Driver(workflow(leaves_it))
    driver.start()
    assert driver.status == "completed"
    assert len(driver.done(StartChild)) == 1
    assert driver.done(CommandChild) == []


def test_nothing_is_sent_before_it_is_awaited() -> None:
    async def makes_only(run: Any) -> None:
        run.step(A, 1).close()
        later = run.step(B, 2)
        await asyncio.sleep(5)
        await later

    driver = Driver(workflow(makes_only))
    driver.start()
    assert driver.dispatched() == []
    driver.pass_time()
    assert names(driver.actions) == ["b"]


# -- sent and answered in one tick ----------------------------------------------------------------


@pytest.mark.parametrize(
    "answer",
    [
        AttemptFinished(1, "1", 1, "completed", b"7"),
        AttemptFinished(1, "1", 1, "failed", None, Failure("user", "Oops", "no")),
        AttemptFinished(1, "1", 1, "rejected"),
        AttemptTimedOut(1, "1", 1, "worker_lost"),
    ],
)
def test_an_attempt_that_is_answered_in_the_batch_that_decides_it_is_not_sent(answer: Any) -> None:
    """A replica that was promoted lost the commit that had sent it, and its answer is there already (protocol 4)."""
    driver = Driver(workflow(one_step))
    driver.apply(START, Stamped(1_001, answer))
    assert (driver.dispatched(), driver.done(StopAttempt)) == ([], [])
    assert len(driver.done(CloseAttempt)) == 1


def test_the_retry_of_such_an_attempt_is_sent() -> None:
    driver = Driver(workflow(one_step))
    failed = AttemptFinished(1, "1", 1, "failed", None, Failure("user", "Oops", "no", retry_after_ms=0))
    driver.apply(START, Stamped(1_001, failed), Stamped(1_001, TimerFired(1, "1", 2)))
    assert [action.node.generation for action in driver.done(DispatchAttempt)] == [2]


def test_a_restart_in_one_batch_sends_only_for_the_new_execution() -> None:
    driver = Driver(workflow(one_step))
    again = RunStarted("wf", "1", b"null", "s2", on_conflict="terminate_existing")
    driver.apply(START, Stamped(1_001, again))
    assert [(action.execution, action.node.node_id) for action in driver.done(DispatchAttempt)] == [(2, "1")]
    ended = Driver(workflow(one_step))
    ended.apply(START, Stamped(1_001, again), Stamped(1_002, CommandReceived("terminate", "c")))
    assert (ended.done(DispatchAttempt), ended.done(StopAttempt)) == ([], [])


def test_dispatches_come_in_the_order_in_which_the_code_asked_after_all_else() -> None:
    async def many(run: Any) -> Any:
        return await asyncio.gather(*(run.step(STEPS[name], n) for n, name in enumerate("cab")))

    driver = Driver(workflow(many))
    driver.start()
    assert [type(action).__name__ for action in driver.actions] == ["EmitLifecycle", *["DispatchAttempt"] * 3]
    assert names(driver.actions) == ["c", "a", "b"]
    assert all(action.node.dispatched_at == 1_000 for action in driver.done(DispatchAttempt))
