"""Status by trigger, in full: what a run in each status does on each trigger."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, get_args

import pytest

from ductor_stream.engine.actions import CommandChild, DispatchAttempt, StartChild
from ductor_stream.engine.draft import Draft
from ductor_stream.engine.events import (
    AttemptFinished,
    AttemptTimedOut,
    ChildFinished,
    CommandReceived,
    Condemned,
    Failure,
    Proceed,
    Redeployed,
    RunStarted,
    RunTimedOut,
    SignalReceived,
    TimerFired,
)
from ductor_stream.engine.state import CLOSED, Status
from ductor_stream.engine.transitions import TABLE, Trigger, moved
from ductor_stream.errors import InvariantViolation, TerminalError
from unit.engine.driver import Driver
from unit.engine.programs import STEPS, workflow

# "-" is a refusal; nothing leads out of the statuses that have no line here.
EXPECTED = """
              park       resume   pause   complete   fail    cancel     terminate   time_out
    running   suspended  -        paused  completed  failed  cancelled  terminated  timed_out
    suspended -          running  paused  -          failed  -          terminated  timed_out
    paused    -          running  -       -          failed  -          terminated  timed_out
"""


def table() -> dict[tuple[str, str], str]:
    """The text above as a dictionary, refusals left out."""
    triggers, *lines = EXPECTED.strip().splitlines()
    rows = {line.split()[0]: line.split()[1:] for line in lines}
    return {
        (status, trigger): cell
        for status, cells in rows.items()
        for trigger, cell in zip(triggers.split(), cells, strict=True)
        if cell != "-"
    }


@pytest.mark.parametrize("status", get_args(Status))
@pytest.mark.parametrize("trigger", get_args(Trigger))
def test_every_status_meets_every_trigger(status: Status, trigger: Trigger) -> None:
    assert moved(status, trigger) == table().get((status, trigger))


def test_the_table_says_nothing_else_and_terminal_statuses_are_final() -> None:
    assert table() == TABLE
    assert not [status for status, _ in TABLE if status in CLOSED]
    assert set(get_args(Status)) - CLOSED == {status for status, _ in TABLE}


# -- runs in each status ----------------------------------------------------------------------


async def waits(run: Any) -> Any:
    """Its status is chosen by what its only step gives."""
    match await run.step(STEPS["a"], 1):
        case "bug":
            raise ValueError
        case "fail":
            raise TerminalError("no")
        case found:
            return found


def _suspended(driver: Driver) -> None:
    driver.finish("1", "bug")


def _timed_out(driver: Driver) -> None:
    driver.hear(RunTimedOut(1), at=driver.header.run_due_at)


MAKE: dict[str, Callable[[Driver], object]] = {
    "running": lambda driver: None,
    "suspended": _suspended,
    "paused": lambda driver: driver.order("pause"),
    "completed": lambda driver: driver.finish("1", "well"),
    "failed": lambda driver: driver.finish("1", "fail"),
    "cancelled": lambda driver: driver.order("cancel"),
    "terminated": lambda driver: driver.order("terminate"),
    "timed_out": _timed_out,
}


def in_status(status: str) -> Driver:
    """A run that is in the status; it began with a timeout of an hour."""
    driver = Driver(workflow(waits))
    driver.start(run_timeout_ms=3_600_000)
    MAKE[status](driver)
    assert driver.status == status
    return driver


EVENTS: list[Any] = [
    AttemptFinished(1, "1", 1, "completed", b'"late"'),
    AttemptFinished(1, "1", 2, "failed", None, Failure("user", "Oops", "late")),
    AttemptFinished(1, "9.9", 1, "completed", b"1"),
    AttemptTimedOut(1, "1", 1, "worker_lost"),
    TimerFired(1, "1", 1),
    RunTimedOut(1),
    SignalReceived("s9", "x", b"1"),
    ChildFinished(1, "1", "c", "completed", b"1"),
    Redeployed("d9", "1"),
    Condemned("stuck", "no progress"),
    Proceed(1),
    RunStarted("wf", "1", b"null", "s1"),
    RunStarted("wf", "2", b"1", "s2", on_conflict="reject"),
    *(CommandReceived(kind, f"c-{kind}") for kind in ("cancel", "terminate", "pause", "resume")),
]


@pytest.mark.parametrize("status", sorted(CLOSED))
def test_nothing_moves_a_closed_run(status: str) -> None:
    """Terminal stays terminal: status, result and failure are final, nothing is dispatched, nothing opens again."""
    driver = in_status(status)
    header, sent = driver.header, len(driver.actions)
    final = (header.status, header.result, header.failure, header.execution)
    for event in EVENTS * 2:
        driver.hear(event, at=header.now + 10_000_000)
        header = driver.header
        assert (header.status, header.result, header.failure, header.execution) == final, event
        assert (driver.state.nodes, driver.state.held, driver.live) == ({}, [], None)
    assert not [a for a in driver.actions[sent:] if isinstance(a, (DispatchAttempt, StartChild, CommandChild))]


def test_a_trigger_that_is_not_in_the_table_is_our_bug() -> None:
    with pytest.raises(InvariantViolation, match="complete in status failed"):
        Draft(in_status("failed").state.clone()).move("complete")


def test_a_closed_run_lets_go_of_all_that_it_awaited() -> None:
    async def awaits_much(run: Any) -> Any:
        async with asyncio.timeout(60):
            await asyncio.gather(run.step(STEPS["a"], 1), run.step(STEPS["b"], 2), asyncio.sleep(9))

    driver = Driver(workflow(awaits_much))
    driver.start()
    assert len(driver.state.nodes) == 4
    driver.order("terminate", reason="enough")
    assert driver.state.nodes == {}
    assert [type(action).__name__ for action in driver.actions[-3:]] == ["StopAttempt", "StopAttempt", "EmitLifecycle"]
    assert driver.actions[-1].reason == "enough"
