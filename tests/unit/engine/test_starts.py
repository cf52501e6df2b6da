"""Starts of a run that exists, in every status: ``on_conflict``, and the next execution."""

from __future__ import annotations

from typing import Any, get_args

import pytest

from ductor_stream.engine.actions import DispatchAttempt, EmitLifecycle
from ductor_stream.engine.events import ChildFinished, OnConflict, RunStarted
from ductor_stream.engine.state import CLOSED, Status
from ductor_stream.engine.tick import Stamped
from unit.engine.driver import Driver
from unit.engine.programs import CHILD, workflow
from unit.engine.test_commands import OPEN, said
from unit.engine.test_transitions import in_status, waits

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
        # Of a run that has ended it hears how; nothing has happened, and nothing is counted.
        header = driver.header
        answer = EmitLifecycle(
            "start.answered", 1, seq, header.now + 1, header.result, header.failure, about="s2", status=status
        )
        assert (done.records, driver.status, header.lifecycle_seq) == ([], status, seq)
        assert done.actions == ([answer] if status in CLOSED else [])
        return
    if status not in RESTARTS[on_conflict]:
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
