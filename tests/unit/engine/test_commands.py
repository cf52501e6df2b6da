"""Commands and starts in every status: what each says, and what it never does."""

from __future__ import annotations

import asyncio
from typing import Any, get_args

import pytest

from ductor_stream.engine.actions import DispatchAttempt, EmitLifecycle
from ductor_stream.engine.events import (
    ChildFinished,
    CommandKind,
    Condemned,
    OnConflict,
    Redeployed,
    RunStarted,
    SignalReceived,
)
from ductor_stream.engine.state import CLOSED, Status
from ductor_stream.engine.tick import Stamped
from unit.engine.driver import Driver
from unit.engine.programs import CHILD, SIGNALS, STEPS, workflow
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


# -- starts of a run that exists ------------------------------------------------------------

RESTARTS = {
    "use_existing": [],
    "reject": [],
    "restart_if_closed": sorted(CLOSED),
    "restart_if_failed": ["cancelled", "failed", "terminated", "timed_out"],
    "terminate_existing": sorted(get_args(Status)),
}


@pytest.mark.parametrize("status", get_args(Status))
@pytest.mark.parametrize("on_conflict", get_args(OnConflict))
def test_every_kind_of_start_in_every_status(on_conflict: OnConflict, status: str) -> None:
    driver = in_status(status)
    seq = driver.header.lifecycle_seq
    again = RunStarted("wf", "1", b'"other"', "s2", on_conflict=on_conflict, run_timeout_ms=50)
    done = driver.hear(again)
    if on_conflict == "use_existing":
        assert (done.records, done.actions, driver.status) == ([], [], status)
    elif status not in RESTARTS[on_conflict]:
        assert said(done.actions) == "(run_exists)"
        assert (done.actions[-1].about, driver.status, driver.header.execution) == ("s2", status, 1)
    else:
        assert said(done.actions) == ("run.terminated+run.started" if status in OPEN else "run.started")
        header = driver.header
        assert (header.execution, header.seq, header.status, header.input) == (2, 1, "running", b'"other"')
        assert (header.result, header.failure, header.parked, header.cancel_requested) == (None, None, None, False)
        assert header.run_due_at == header.started_at + 50
        assert [a.execution for a in done.actions if isinstance(a, DispatchAttempt)] == [2]
    assert driver.header.lifecycle_seq == seq + len([a for a in done.actions if isinstance(a, EmitLifecycle)])


def test_lifecycle_numbers_are_dense_over_all_executions() -> None:
    driver = Driver(workflow(waits))
    driver.start()
    for number in range(12):
        driver.lose()
        kind: OnConflict = ("restart_if_closed", "terminate_existing", "reject", "restart_if_failed")[number % 4]
        driver.apply(Stamped(2_000 + number, RunStarted("wf", "1", b"null", f"s{number}", on_conflict=kind)))
        if "1" in driver.state.nodes:
            driver.finish("1", ("well", "bug", "fail")[number % 3])
        driver.order("pause")
    told = driver.done(EmitLifecycle)
    assert [one.seq for one in told] == list(range(1, len(told) + 1))
    assert len({(one.execution, one.seq) for one in told}) == len(told)
    assert driver.header.execution > 3


def test_results_of_an_earlier_execution_are_late_in_the_next() -> None:
    """R8: the fence names the execution."""
    driver = in_status("running")
    old = driver.finish("1", "bug").records[0].event
    driver.hear(RunStarted("wf", "1", b"null", "s2", on_conflict="terminate_existing"))
    done = driver.hear(old)
    assert done.records == []
    assert [type(action).__name__ for action in done.actions] == ["RecordLate"]
    driver.finish("1", "new")
    assert driver.result == "new"


def test_nothing_of_an_earlier_execution_reaches_the_next() -> None:
    async def awaits_a_child(run: Any) -> Any:
        return await run.child(CHILD, 1)

    driver = Driver(workflow(awaits_a_child))
    driver.start()
    driver.send("x", "for the first")
    driver.hear(RunStarted("wf", "1", b"null", "s2", on_conflict="terminate_existing"))
    assert driver.state.signals == []
    assert driver.hear(ChildFinished(1, "1", "r/1/1", "completed", b'"old"')).records == []
    driver.hear(ChildFinished(2, "1", "r/2/1", "completed", b'"new"'))
    assert driver.result == "new"
