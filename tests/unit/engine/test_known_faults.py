"""Faults that other engines are known for, as far as the engine can have them (the whole list: docs/proof.md)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ductor_stream.engine.actions import CommandChild, DispatchAttempt, StartChild, StopAttempt
from ductor_stream.engine.definition import RetryPolicy, StepOptions
from ductor_stream.engine.events import Condemned, Redeployed
from ductor_stream.engine.state import SignalPassedOver
from ductor_stream.engine.tick import Stamped
from ductor_stream.errors import StepError
from unit.engine.driver import Driver
from unit.engine.programs import CHILD, SIGNALS, STEPS, signal, step, workflow

MANY = 500


@pytest.mark.parametrize("where", ["in the batch that began it", "later"])
def test_a_fan_out_over_a_limit_leaves_no_orphans(where: str) -> None:
    """Condemned in the midst of it, each attempt and child that is out is stopped, and what is not out is never sent."""

    async def fans_out(run: Any) -> Any:
        steps = (run.step(STEPS["a"], item) for item in range(MANY))
        return await asyncio.gather(*steps, *(run.child(CHILD, item) for item in range(MANY)))

    driver = Driver(workflow(fans_out))
    condemned = Condemned("history_limit", "too long")
    if where == "later":
        driver.start()
        assert len(driver.done(DispatchAttempt)) == len(driver.done(StartChild)) == MANY
        driver.hear(condemned)
        assert {a.node.node_id for a in driver.done(StopAttempt)} == set(driver.dispatched())
        sent = {a.node.node_id for a in driver.done(StartChild)}
        assert {a.node.node_id for a in driver.done(CommandChild)} == sent
    else:
        twin = Driver(workflow(fans_out))
        twin.start()
        driver.apply(*twin.applied, Stamped(1_001, condemned))
        assert driver.done(DispatchAttempt) == driver.done(StartChild) == []
        assert driver.done(StopAttempt) == driver.done(CommandChild) == []
    assert (driver.status, driver.state.nodes) == ("failed", {})


@pytest.mark.parametrize("code", ["heartbeat_lost", "timeout_start_to_close", "worker_lost"])
def test_time_outs_hold_on_retries_too(code: str) -> None:
    """Each try has its own, under its own generation; that of a try before it changes nothing."""
    options = StepOptions(retry=RetryPolicy(max_attempts=3, initial_ms=10))

    async def tries(run: Any) -> Any:
        try:
            return await run.step(step("t", options), 1)
        except StepError as error:
            return error.error_code

    driver = Driver(workflow(tries))
    driver.start()
    for attempt in (1, 2, 3):
        assert (driver.node("1").status, driver.node("1").attempt) == ("dispatched", attempt)
        generation = driver.node("1").generation
        driver.time_out("1", code)
        if attempt < 3:
            stale = driver.applied[-1].event
            assert driver.node("1").generation == generation + 1
            assert driver.hear(stale).records == [], "the time-out of the try before"
            driver.pass_time()
            assert driver.hear(stale).records == []
    assert driver.result == code


@pytest.mark.parametrize("lost", [False, True])
def test_a_signal_is_consumed_once_over_suspension_and_resumption(lost: bool) -> None:
    """One was taken before the bug, one met it, one came while the run was suspended, one after: each once, in order."""

    def reads(broken: bool) -> Any:
        async def read(run: Any) -> Any:
            found: list[Any] = []
            while len(found) < 4:
                found.append(await run.wait_signal(SIGNALS["x"]))
                if broken and len(found) == 2:
                    raise ValueError
            return found

        return read

    driver = Driver(workflow(reads(broken=True)))
    driver.start()
    driver.send("x", 1, "s1")
    driver.send("x", 2, "s2")
    assert driver.status == "suspended"
    driver.send("x", 3, "s3")
    driver.order("resume")
    assert driver.status == "suspended", "the same code, the same bug"
    driver.definitions = {("wf", "1"): workflow(reads(broken=False), digest="d2")}
    if lost:
        driver.lose()
    driver.hear(Redeployed("d2", "1"))
    driver.order("pause")
    driver.order("resume")
    driver.send("x", 4, "s4")
    assert driver.result == [1, 2, 3, 4]
    assert driver.state.signals == []


@pytest.mark.parametrize("lost", [False, True])
def test_a_waiting_payload_that_other_code_cannot_read_blocks_nobody_and_is_not_gone(lost: bool) -> None:
    """A signal that lay waiting met a changed schema and was passed over: the run goes on, with the schema mended too,
    and a reset to the wait gives the signal to code that can read it."""

    def asks(payload: Any) -> Any:
        async def ask(run: Any) -> Any:
            found = await run.step(STEPS["a"], 1)
            return [found, await run.wait_signal(signal("t", payload))]

        return ask

    driver = Driver(workflow(asks(str)))
    driver.start()
    driver.send("t", "waiting", "s1")
    driver.deploy(workflow(asks(int), digest="d2"))
    driver.hear(Redeployed("d2", "1"))
    driver.finish("1", "x")
    assert driver.status == "running", "nobody can block it"
    if lost:
        driver.lose()
    driver.deploy(workflow(asks(str), digest="d3"))
    driver.hear(Redeployed("d3", "1"))
    driver.send("t", "behind", "s2")
    assert driver.result == ["x", "behind"]
    assert SignalPassedOver("s1", None) in [d for record in driver.records for d in record.decisions or ()]
    driver.order("reset", to_node="1")
    driver.finish("1", "y")
    assert driver.result == ["y", "waiting"]


def test_a_signal_that_was_taken_and_no_longer_fits_is_told_as_what_it_is() -> None:
    def asks(payload: Any) -> Any:
        async def ask(run: Any) -> Any:
            return [await run.wait_signal(signal("t", payload)), await run.step(STEPS["a"], 1)]

        return ask

    driver = Driver(workflow(asks(str)))
    driver.start()
    driver.send("t", "taken", "s1")
    driver.deploy(workflow(asks(int), digest="d2"))
    driver.finish("2", 1)
    assert driver.parked[0] == "nondeterminism"
    assert "history has signal s1 taken; this code has signal s1 passed over" in driver.parked[1]
    driver.deploy(workflow(asks(str), digest="d3"))
    driver.hear(Redeployed("d3", "1"))
    assert driver.result == ["taken", 1]
