"""What becomes of a child when its parent ends, in whichever way: what its ``parent_close`` says, once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from ductor_stream.engine.actions import CommandChild, StartChild
from ductor_stream.engine.events import Condemned, RunStarted
from ductor_stream.errors import TerminalError
from unit.engine.driver import Driver
from unit.engine.programs import CHILD, SIGNALS, STEPS, workflow

POLICIES: list[tuple[Any, list[str]]] = [("cancel", ["cancel"]), ("terminate", ["terminate"]), ("abandon", [])]


def _told(driver: Driver) -> list[tuple[str, str]]:
    """What children were told, and which."""
    return [(command.kind, command.node.child.run_id) for command in driver.done(CommandChild)]


def _anew(driver: Driver) -> None:
    driver.hear(RunStarted("wf", "1", b"null", "s2", on_conflict="terminate_existing"))


ENDS: dict[str, tuple[Callable[[Driver], object], str]] = {
    "terminated": (lambda driver: driver.order("terminate"), "terminated"),
    "cancelled": (lambda driver: driver.order("cancel"), "cancelled"),
    "completed": (lambda driver: driver.send("x", "return"), "completed"),
    "failed": (lambda driver: driver.send("x", "raise"), "failed"),
    "condemned": (lambda driver: driver.hear(Condemned("history_limit", "too long")), "failed"),
    "timed out": (lambda driver: driver.pass_time(), "timed_out"),
    "reset": (lambda driver: driver.order("reset", to_node="1.1"), "running"),
    "reset to its start": (lambda driver: driver.order("reset", to_transition=1), "running"),
    "replaced": (_anew, "running"),
    "continued": (lambda driver: driver.send("x", "continue"), "running"),
    "paused, then terminated": (lambda driver: (driver.order("pause"), driver.order("terminate")), "terminated"),
    "suspended, then terminated": (lambda driver: (driver.send("x", "bug"), driver.order("terminate")), "terminated"),
}
"""By kind of end: how it comes, and the status of the run afterwards."""


@pytest.mark.parametrize("lost", [False, True])
@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize(("policy", "expected"), POLICIES)
def test_no_child_is_left_under_a_closed_parent_unless_abandoned(
    policy: Any, expected: list[str], end: str, lost: bool
) -> None:
    async def waits(run: Any) -> Any:
        await asyncio.sleep(0)
        below = asyncio.create_task(run.child(CHILD, 1, parent_close=policy))
        match await run.wait_signal(SIGNALS["x"]):
            case "return":
                return below.done()
            case "raise":
                raise TerminalError("no")
            case "bug":
                raise ValueError
            case "continue":
                run.continue_as_new()

    driver = Driver(workflow(waits))
    driver.start(run_timeout_ms=60_000)
    [child] = [start.node.child.run_id for start in driver.done(StartChild)]
    if lost:
        driver.lose()
    how, status = ENDS[end]
    how(driver)
    assert driver.status == status
    assert _told(driver) == [(kind, child) for kind in expected]
    kept = [node.child.run_id for node in driver.state.nodes.values() if node.child is not None]
    assert kept == [start.node.child.run_id for start in driver.done(StartChild)[1:]], "the next execution has its own"
    if status not in ("running", "completed"):
        driver.order("terminate")
        assert len(_told(driver)) == len(expected), "a closed run tells nobody anything"


@pytest.mark.parametrize(("policy", "expected"), POLICIES)
def test_a_retry_goes_on_with_the_child_and_is_heard_by_it_as_itself(policy: Any, expected: list[str]) -> None:
    """The failure has told it what to do; it is told again, for the retried execution, when that ends."""

    async def waits(run: Any) -> Any:
        below = asyncio.create_task(run.child(CHILD, 1, parent_close=policy))
        await asyncio.sleep(0)
        await run.step(STEPS["a"], 1)
        return below.done()

    driver = Driver(workflow(waits))
    driver.start()
    driver.fail("2", retryable=False)
    assert driver.status == "failed"
    assert _told(driver) == [(kind, "r/1/1.1") for kind in expected]
    driver.order("retry")
    assert [start.node.child.run_id for start in driver.done(StartChild)] == ["r/1/1.1", "r/1/1.1"]
    assert _told(driver) == [(kind, "r/1/1.1") for kind in expected]
    driver.finish("2")
    assert driver.status == "completed"
    assert _told(driver) == [(kind, "r/1/1.1") for _ in (1, 2) for kind in expected]
    assert [command.execution for command in driver.done(CommandChild)] == [1, 2][: 2 * len(expected)]
