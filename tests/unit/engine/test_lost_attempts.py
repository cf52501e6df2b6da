"""An attempt whose task was lost is sent again as it was; one that is lost each time fails, with the reason (R7, R9)."""

from __future__ import annotations

from typing import Any

import pytest

from ductor_stream.engine.actions import CloseAttempt, DispatchAttempt, EmitLifecycle
from ductor_stream.engine.events import AttemptLost
from ductor_stream.engine.state import state_bytes
from ductor_stream.engine.tick import rebuild
from ductor_stream.engine.waiting import waiting_for
from ductor_stream.errors import StepError
from unit.engine.driver import Driver
from unit.engine.programs import step, workflow

ONE = step("one")


async def program(run: Any) -> Any:
    try:
        return await run.step(ONE)
    except StepError as error:
        return [type(error).__name__, error.error_code, str(error)]


def started() -> Driver:
    driver = Driver(workflow(program))
    driver.start()
    return driver


def test_the_same_attempt_is_sent_again() -> None:
    """Same generation, same attempt, no new line of an attempt: a worker that has it after all does no harm."""
    driver = started()
    done = driver.hear(AttemptLost(1, "1", 1), at=5_000)
    told, sent = done.actions
    assert isinstance(told, EmitLifecycle)
    assert (told.type, told.reason) == (
        "run.redriven",
        "the task of step one, attempt 1 (node 1), was lost unread: sent again, redrive 1",
    )
    assert isinstance(sent, DispatchAttempt)
    assert sent.again
    assert (sent.node.generation, sent.node.attempt, sent.node.dispatched_at) == (1, 1, 1_000)
    assert (driver.node("1").redrives, driver.node("1").sent_at) == (1, 5_000)
    assert state_bytes(rebuild("r", driver.history())) == state_bytes(driver.state)
    driver.finish("1", "done")
    assert driver.result == "done"


def test_it_is_told_why_the_run_waits() -> None:
    driver = started()
    driver.hear(AttemptLost(1, "1", 1), at=1_700_000_000_000)
    told = waiting_for(driver.state, 1_700_000_001_000)
    assert told is not None
    assert "sent again at 2023-11-14T22:13:20Z (redrive 1: its task was lost unread)" in told


@pytest.mark.parametrize("fence", [(2, "1", 1), (1, "2", 1), (1, "1", 2)])
def test_one_that_is_not_current_changes_nothing(fence: tuple[int, str, int]) -> None:
    driver = started()
    done = driver.hear(AttemptLost(*fence))
    assert (done.records, done.actions) == ([], [])


def test_nothing_is_sent_while_the_run_is_paused() -> None:
    driver = started()
    driver.order("pause")
    done = driver.hear(AttemptLost(1, "1", 1))
    assert (done.records, done.actions) == ([], [])


def test_a_retry_counts_anew() -> None:
    driver = started()
    driver.hear(AttemptLost(1, "1", 1))
    driver.time_out("1", "worker_lost")
    assert (driver.node("1").redrives, driver.node("1").sent_at) == (0, 0)
    driver.pass_time()
    assert driver.node("1").dispatched_at == driver.header.now


def test_it_is_given_up_with_the_reason_and_not_tried_again() -> None:
    driver = started()
    for _ in range(3):
        driver.hear(AttemptLost(1, "1", 1))
    done = driver.time_out("1", "dispatch_lost")
    assert isinstance(done.actions[0], CloseAttempt)
    told = "step one: its task was sent 4 times, and each time nobody began it"
    assert driver.result == ["StepError", "dispatch_lost", told]
