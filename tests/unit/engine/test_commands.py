"""Commands in every status: what each says, and what it never does."""

from __future__ import annotations

import asyncio
from typing import Any, get_args

import pytest

from ductor_stream.engine.actions import EmitLifecycle
from ductor_stream.engine.events import (
    CommandKind,
    Condemned,
    Redeployed,
    SignalReceived,
)
from ductor_stream.engine.state import CLOSED, Status
from ductor_stream.engine.tick import Stamped
from unit.engine.driver import Driver
from unit.engine.programs import SIGNALS, STEPS, workflow
from unit.engine.test_transitions import in_status, waits

OPEN = sorted(set(get_args(Status)) - CLOSED)

# What a run says to a command: its lifecycle events, or in brackets why it refuses. A cancel of a run that is held up
# is heard when it goes on; a suspended run that is resumed meets its bug again.
ANSWERS = """
                cancel        terminate         pause             resume                       retry             reset
    running     run.cancelled run.terminated    run.paused        (run_is_running)             (run_not_failed)  (node_not_found)
    suspended   silence       run.terminated    run.paused        run.resumed+run.suspended    (run_not_failed)  (node_not_found)
    paused      silence       run.terminated    (run_is_paused)   run.resumed                  (run_not_failed)  (node_not_found)
    completed   (run_closed)  (run_closed)      (run_closed)      (run_closed)                 (run_not_failed)  (node_not_found)
    failed      (run_closed)  (run_closed)      (run_closed)      (run_closed)                 run.started       (node_not_found)
    cancelled   (run_closed)  (run_closed)      (run_closed)      (run_closed)                 (run_not_failed)  (node_not_found)
    terminated  (run_closed)  (run_closed)      (run_closed)      (run_closed)                 (run_not_failed)  (node_not_found)
    timed_out   (run_closed)  (run_closed)      (run_closed)      (run_closed)                 run.started       (node_not_found)
"""
CASES = [
    (line.split()[0], kind, answer)
    for line in ANSWERS.strip().splitlines()[1:]
    for kind, answer in zip(ANSWERS.strip().splitlines()[0].split(), line.split()[1:], strict=True)
]


def said(actions: list[Any]) -> str:
    """The lifecycle events among these actions, as the table writes them."""
    told = [action for action in actions if isinstance(action, EmitLifecycle)]
    words = [f"({one.reason})" if one.type == "command.rejected" else one.type for one in told]
    return "+".join(words) or "silence"


@pytest.mark.parametrize(("status", "kind", "answer"), CASES)
def test_every_command_in_every_status(status: str, kind: CommandKind, answer: str) -> None:
    driver = in_status(status)
    before = driver.header
    done = driver.order(kind, reason="somebody asked")
    assert said(done.actions) == answer
    assert len(done.records) == 1
    if answer.startswith("("):
        assert (driver.status, driver.header.execution) == (before.status, before.execution)
        assert done.actions[-1].about == driver.applied[-1].event.command_id  # type: ignore[union-attr]


def test_the_table_is_complete() -> None:
    assert {(s, k) for s, k, _ in CASES} == {(s, k) for s in get_args(Status) for k in get_args(CommandKind)}


@pytest.mark.parametrize("status", get_args(Status))
def test_a_reset_to_a_node_begins_a_new_execution_from_there(status: str) -> None:
    driver = in_status(status)
    done = driver.order("reset", to_node="1")
    ended = "run.terminated+" if status in OPEN else ""
    assert said(done.actions) == f"{ended}run.started"
    assert (driver.status, driver.header.execution) == ("running", 2)
    assert driver.node("1").status == "dispatched"
    driver.finish("1", "anew")
    assert driver.result == "anew"


def test_a_retry_goes_back_to_what_failed_the_run_whatever_came_after_its_end() -> None:
    """What was refused after the end is neither what failed nor told again."""
    driver = in_status("failed")
    driver.send("x", "too late", "s1")
    driver.order("cancel")
    driver.send("x", "too late", "s2")
    driver.order("retry")
    assert (driver.status, driver.node("1").status) == ("running", "dispatched")
    assert driver.state.signals == []
    driver.finish("1", "well")
    assert driver.result == "well"


def test_a_reset_of_a_reset_loses_neither_history_nor_signals() -> None:
    async def asks(run: Any) -> Any:
        return [await run.step(STEPS["a"], 1), await run.wait_signal(SIGNALS["x"])]

    driver = Driver(workflow(asks))
    driver.start()
    driver.send("x", "early")
    for execution in (2, 3, 4):
        driver.order("reset", to_node="1")
        driver.lose()
        assert (driver.header.execution, driver.node("1").status) == (execution, "dispatched")
    driver.finish("1", "anew")
    assert driver.result == ["anew", "early"]


# -- cancelling -----------------------------------------------------------------------------


def test_a_second_cancel_is_refused_and_the_code_may_take_its_time() -> None:
    async def tidies(run: Any) -> Any:
        try:
            await run.step(STEPS["a"], 1)
        finally:
            await run.step(STEPS["b"], "tidy up")

    driver = Driver(workflow(tidies))
    driver.start()
    driver.order("cancel")
    assert (driver.status, driver.header.cancel_requested) == ("running", True)
    assert said(driver.order("cancel").actions) == "(cancel_requested_already)"
    driver.lose()
    driver.finish("2")
    assert driver.status == "cancelled"


def test_a_cancel_that_the_code_swallows_lets_it_complete() -> None:
    async def insists(run: Any) -> Any:
        try:
            await run.step(STEPS["a"], 1)
        except asyncio.CancelledError:
            return "done anyway"

    driver = Driver(workflow(insists))
    driver.start()
    driver.order("cancel")
    assert driver.result == "done anyway"


@pytest.mark.parametrize("status", ["paused", "suspended"])
def test_a_cancel_waits_until_the_run_goes_on(status: str) -> None:
    driver = in_status(status)
    driver.order("cancel")
    assert driver.status == status
    driver.deploy(workflow(waits if status == "paused" else _awaits_twice, digest="d2"))
    driver.order("resume") if status == "paused" else driver.hear(Redeployed("d2", "1"))
    assert driver.status == "cancelled"


async def _awaits_twice(run: Any) -> Any:
    await run.step(STEPS["a"], 1)
    return await run.step(STEPS["b"], 2)


@pytest.mark.parametrize("hold_up", [False, True])
def test_a_cancel_is_not_lost_when_the_run_continues_as_new_before_it_hears_of_it(hold_up: bool) -> None:
    async def counts(run: Any) -> None:
        await run.wait_signal(SIGNALS["x"])
        run.continue_as_new()

    driver = Driver(workflow(counts))
    driver.start()
    if hold_up:
        driver.order("pause")
    else:
        driver.apply(*(Stamped(2_000, SignalReceived(f"s{n}", "x", b"1")) for n in range(3)))
    driver.send("x")
    driver.order("cancel")
    if hold_up:
        driver.order("resume")
    while driver.status == "running":
        assert driver.state.held, "it waits for nothing else"
        driver.pass_time()
    assert driver.status == "cancelled"


def test_a_cancel_that_was_heard_does_not_haunt_the_next_execution() -> None:
    async def moves_on(run: Any) -> None:
        try:
            await run.wait_signal(SIGNALS["x"])
        except asyncio.CancelledError:
            run.continue_as_new()

    driver = Driver(workflow(moves_on))
    driver.start()
    driver.order("cancel")
    driver.pass_time()
    assert (driver.header.execution, driver.status, driver.header.cancel_requested) == (2, "running", False)


# -- condemned ------------------------------------------------------------------------------


@pytest.mark.parametrize("status", get_args(Status))
def test_a_condemned_run_fails_with_its_reason_unless_it_has_ended(status: str) -> None:
    """R9: better an explained failure than silence."""
    driver = in_status(status)
    done = driver.hear(Condemned("livelock", "20 version conflicts in a row"))
    if status in CLOSED:
        assert (done.records, done.actions, driver.status) == ([], [], status)
        return
    failure = driver.header.failure
    assert failure is not None
    assert (driver.status, failure.code, failure.message) == ("failed", "livelock", "20 version conflicts in a row")
    assert said(done.actions) == "run.failed"
