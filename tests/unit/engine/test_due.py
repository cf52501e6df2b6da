"""What comes due, and when: the four time-outs of a step, timers, back-offs, and the run's own time."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from ductor_stream.engine.actions import CloseAttempt, StopAttempt
from ductor_stream.engine.definition import RetryPolicy, StepOptions
from ductor_stream.engine.draft import deadline
from ductor_stream.engine.events import (
    AttemptFinished,
    AttemptTimedOut,
    Failure,
    RunTimedOut,
    TimerFired,
)
from ductor_stream.engine.state import Node
from ductor_stream.engine.tick import due_events, wake_at
from ductor_stream.errors import StepError
from unit.engine.driver import Driver
from unit.engine.programs import step, workflow

POLICY = RetryPolicy(max_attempts=3, initial_ms=100, factor=1, jitter=0)


def started(retry: RetryPolicy = POLICY, at: int = 1_000, **limits: int) -> Driver:
    """A run that began at that time and awaits one step with these limits; its result tells how that ended."""

    async def tries(run: Any) -> Any:
        try:
            return await run.step(step("charge", StepOptions(retry=retry, **limits)), 1)
        except StepError as error:
            return [type(error).__name__, error.error_code, error.attempts]

    driver = Driver(workflow(tries))
    driver.start(now=at)
    return driver


def due(driver: Driver, now: int) -> list[Any]:
    return due_events(driver.state, now)


# -- deadlines of nodes -----------------------------------------------------------------------


def node(**more: Any) -> Node:
    return Node(**{"node_id": "1", "kind": "step", "name": "a", "status": "dispatched", "created_at": 1_000, **more})


@pytest.mark.parametrize(
    ("found", "running", "held_up"),
    [
        (node(), None, None),
        (node(options=StepOptions()), None, None),
        (node(options=StepOptions(schedule_to_close_ms=50)), 1_050, 1_050),
        (node(options=StepOptions(schedule_to_start_ms=30), dispatched_at=2_000), 2_030, 2_030),
        (
            node(options=StepOptions(schedule_to_start_ms=30, schedule_to_close_ms=20), dispatched_at=1_000),
            1_020,
            1_020,
        ),
        (node(options=StepOptions(schedule_to_start_ms=30), status="backoff", due_at=1_500), 1_500, None),
        (node(options=StepOptions(schedule_to_close_ms=50), status="backoff", due_at=1_040), 1_040, 1_050),
        (node(options=StepOptions(schedule_to_close_ms=50), status="backoff", due_at=1_060), 1_050, 1_050),
        (node(kind="timer", status="waiting", due_at=1_700), 1_700, None),
        (node(kind="signal", status="waiting"), None, None),
    ],
)
def test_when_a_node_must_be_looked_at(found: Node, running: int | None, held_up: int | None) -> None:
    assert deadline(found) == running
    assert deadline(found, running=False) == held_up


# -- time-outs of a step ----------------------------------------------------------------------


def test_schedule_to_start_counts_from_each_dispatch_and_is_final() -> None:
    driver = started(schedule_to_start_ms=500)
    driver.fail("1")
    driver.pass_time()
    sent_at = driver.header.now
    assert wake_at(driver.state) == sent_at + 500
    assert due(driver, sent_at + 499) == []
    assert due(driver, sent_at + 500) == [AttemptTimedOut(1, "1", 2, "timeout_schedule_to_start")]
    driver.pass_time()
    assert driver.result == ["StepTimeout", "timeout_schedule_to_start", 2]


def test_schedule_to_close_counts_from_the_first_dispatch_and_is_final() -> None:
    driver = started(schedule_to_close_ms=500)
    driver.fail("1")
    driver.pass_time()
    assert due(driver, 1_499) == []
    assert due(driver, 1_500) == [AttemptTimedOut(1, "1", 2, "timeout_schedule_to_close")]
    driver.pass_time()
    assert driver.result == ["StepTimeout", "timeout_schedule_to_close", 2]
    assert [stop.reason for stop in driver.done(StopAttempt)] == ["timeout_schedule_to_close"]


def test_a_node_whose_time_is_over_is_not_tried_once_more() -> None:
    """Rejected, it waits for longer than all its tries together may take; the owner looks late."""
    driver = started(schedule_to_close_ms=600)
    driver.hear(AttemptFinished(1, "1", 1, "rejected", None, Failure("step_unknown", "StepUnknown", "no")))
    assert driver.node("1").due_at == 2_001
    assert wake_at(driver.state) == 1_600
    assert due(driver, 9_000) == [AttemptTimedOut(1, "1", 2, "timeout_schedule_to_close")]
    driver.pass_time(9_000)
    assert driver.dispatched() == ["1"]
    assert driver.result == ["StepTimeout", "timeout_schedule_to_close", 1]


@pytest.mark.parametrize("code", ["timeout_start_to_close", "heartbeat_lost", "worker_lost"])
def test_an_attempt_that_is_given_up_is_tried_again_and_its_worker_told_to_stop(code: str) -> None:
    """These the owner finds out by itself, counted from the first heartbeat that it hears."""
    driver = started()
    done = driver.time_out("1", code)
    assert [type(action) for action in done.actions] == [CloseAttempt, StopAttempt]
    assert (driver.node("1").status, driver.node("1").attempt) == ("backoff", 2)
    for _ in range(2):
        driver.pass_time()
        driver.time_out("1", code)
    assert driver.result == ["StepTimeout", code, 3]


def test_non_retryable_may_name_timeouts() -> None:
    driver = started(retry=RetryPolicy(non_retryable=("StepTimeout",)))
    driver.time_out("1", "worker_lost")
    assert driver.result == ["StepTimeout", "worker_lost", 1]


def test_a_time_out_of_an_attempt_that_has_ended_changes_nothing() -> None:
    driver = started()
    driver.fail("1")
    for fence in ((1, "1", 1), (2, "1", 2), (1, "2", 1)):
        done = driver.hear(AttemptTimedOut(*fence, "worker_lost"))
        assert (done.records, done.actions) == ([], [])


def test_time_outs_of_attempts_pass_while_the_run_is_paused_but_nothing_is_tried_again() -> None:
    driver = started(schedule_to_close_ms=150)
    driver.fail("1")
    driver.order("pause")
    assert wake_at(driver.state) == 1_150
    assert due(driver, 1_149) == []
    driver.pass_time()
    assert (driver.status, driver.state.nodes) == ("paused", {})
    driver.order("resume")
    assert driver.result == ["StepTimeout", "timeout_schedule_to_close", 2]


# -- timers -----------------------------------------------------------------------------------


async def sleeps(run: Any) -> Any:
    async with asyncio.timeout(3):
        await asyncio.gather(asyncio.sleep(2), asyncio.sleep(1), asyncio.sleep(2))


def test_timers_come_due_in_their_order_whenever_the_owner_looks() -> None:
    driver = Driver(workflow(sleeps))
    driver.start()
    assert wake_at(driver.state) == 2_000
    events = due(driver, 60_000)
    times = {node.node_id: node.due_at for node in driver.state.nodes.values()}
    assert all(isinstance(event, TimerFired) for event in events)
    assert [times[event.node_id] for event in events] == [2_000, 3_000, 3_000, 4_000]
    assert [event.node_id for event in events[1:3]] == sorted(event.node_id for event in events[1:3])


def test_a_timer_of_another_time_execution_or_generation_changes_nothing() -> None:
    driver = Driver(workflow(sleeps))
    driver.start()
    [first, *_] = due(driver, 2_000)
    for fired, at in (
        (first, 1_999),
        (msgspec.structs.replace(first, execution=2), 2_000),
        (msgspec.structs.replace(first, generation=2), 2_000),
        (msgspec.structs.replace(first, node_id="9"), 2_000),
    ):
        done = driver.hear(fired, at=at)
        assert (done.records, done.actions) == ([], [])
    assert len(driver.hear(first, at=2_000).records) == 1
    assert driver.hear(first, at=2_001).records == []


def test_timers_that_lost_their_race_are_dropped_in_the_same_batch() -> None:
    """The owner looks late, all four are due: the sleeps end the block, and its timeout no longer counts."""
    driver = Driver(workflow(sleeps))
    driver.start()
    driver.pass_time(60_000)
    assert driver.result is None
    assert len([r for r in driver.records if isinstance(r.event, TimerFired)]) == 3


@pytest.mark.parametrize("status", ["paused", "suspended"])
def test_no_timer_fires_while_the_run_is_held_up_and_all_do_afterwards(status: str) -> None:
    driver = Driver(workflow(sleeps))
    driver.start()
    events = due(driver, 60_000)
    if status == "paused":
        driver.order("pause")
    else:
        driver.deploy()
        driver.send("x")
    assert driver.status == status
    assert wake_at(driver.state) is None
    assert due(driver, 60_000) == []
    assert driver.hear(events[0], at=60_000).records == []
    driver.deploy(workflow(sleeps, digest="d2"))
    resumed = driver.order("resume")
    assert resumed.soonest == 2_000, "the owner is told that timers count again"
    driver.pass_time()
    driver.pass_time()
    assert driver.status == "completed"


# -- the run's own time -----------------------------------------------------------------------


@pytest.mark.parametrize("hold_up", [False, True])
def test_the_runs_own_timeout_is_hard_even_when_it_is_paused(hold_up: bool) -> None:
    driver = Driver(workflow(sleeps))
    driver.start(run_timeout_ms=500)
    if hold_up:
        driver.order("pause")
    assert wake_at(driver.state) == 1_500
    assert due(driver, 1_499) == []
    assert due(driver, 9_000) == [RunTimedOut(1)]
    assert driver.hear(RunTimedOut(1), at=1_499).records == []
    assert driver.hear(RunTimedOut(2), at=1_500).records == []
    driver.pass_time()
    assert driver.status == "timed_out"
    assert driver.header.failure is not None
    assert driver.header.failure.code == "timeout_run"
    assert (wake_at(driver.state), due(driver, 10**15)) == (None, [])


def test_a_run_without_a_timeout_is_never_timed_out() -> None:
    driver = started()
    assert driver.hear(RunTimedOut(1), at=10**15).records == []
    assert (driver.status, wake_at(driver.state)) == ("running", None)
