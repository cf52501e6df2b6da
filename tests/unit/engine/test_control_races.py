"""Every command in every waiting state, before and after what the run waits for, in one batch and in two."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, get_args

import pytest

from ductor_stream.engine.actions import DispatchAttempt, StartChild
from ductor_stream.engine.events import (
    AnyEvent,
    AttemptFinished,
    ChildFinished,
    CommandKind,
    CommandReceived,
    Failure,
    Proceed,
    SignalReceived,
    TimerFired,
)
from ductor_stream.engine.state import CLOSED, state_bytes
from ductor_stream.engine.tick import Stamped
from unit.engine.driver import Driver
from unit.engine.programs import CHILD, SIGNALS, STEPS, workflow


async def step(run: Any) -> Any:
    return await run.step(STEPS["a"], 1)


async def timer(run: Any) -> Any:
    await asyncio.sleep(60)
    return "slept"


async def signal(run: Any) -> Any:
    return await run.wait_signal(SIGNALS["x"])


async def child(run: Any) -> Any:
    return await run.child(CHILD, 7)


async def shielded(run: Any) -> Any:
    inner = asyncio.ensure_future(run.step(STEPS["a"], 1))
    try:
        return await asyncio.shield(inner)
    except asyncio.CancelledError:
        await inner
        raise


async def tidying(run: Any) -> Any:
    try:
        await run.wait_signal(SIGNALS["x"])
    finally:
        await run.step(STEPS["b"], "tidy up")


async def continuing(run: Any) -> Any:
    if run.info.execution == 1:
        run.continue_as_new()
    return await run.step(STEPS["a"], 2)


async def buggy(run: Any) -> Any:
    asked = asyncio.ensure_future(run.step(STEPS["a"], 1))
    await run.wait_signal(SIGNALS["y"])
    raise ValueError(await asked)


def _fails(driver: Driver) -> None:
    driver.fail("1")


def _cancelled(driver: Driver) -> None:
    driver.order("cancel")


def _paused(driver: Driver) -> None:
    driver.order("pause")


def _suspended(driver: Driver) -> None:
    driver.apply(Stamped(2_000, SignalReceived("s0", "y", b"null")))
    driver.finish("1.1", "first")


def _elsewhere(driver: Driver) -> None:
    driver.deploy()
    driver.send("x", "met by nobody", "s0")


DONE = AttemptFinished(1, "1", 1, "completed", b'"done"')
WAITING: dict[str, tuple[Callable[..., Any], Callable[[Driver], None] | None, tuple[AnyEvent, ...]]] = {
    "step": (step, None, (DONE,)),
    "backing-off": (step, _fails, (TimerFired(1, "1", 2), AttemptFinished(1, "1", 2, "completed", b'"done"'))),
    "timer": (timer, None, (TimerFired(1, "1", 1),)),
    "signal": (signal, None, (SignalReceived("s1", "x", b'"heard"'),)),
    "child": (child, None, (ChildFinished(1, "1", "r/1/1", "completed", b'"born"'),)),
    "shielded": (shielded, None, (AttemptFinished(1, "1.1", 1, "completed", b'"done"'),)),
    "tidying": (tidying, _cancelled, (AttemptFinished(1, "2", 1, "completed", b"null"),)),
    "continuing": (continuing, None, (Proceed(2), AttemptFinished(2, "1", 1, "completed", b'"done"'))),
    "paused": (step, _paused, (DONE,)),
    "suspended": (buggy, _suspended, (SignalReceived("s1", "x", b'"heard"'),)),
    "undeployed": (step, _elsewhere, (DONE,)),
}
"""By what the run waits for: its code, how it gets there, and what it waits for."""


def waiting(state: str) -> Driver:
    function, reach, _ = WAITING[state]
    driver = Driver(workflow(function))
    driver.start()
    if reach is not None:
        reach(driver)
    assert driver.status == {"paused": "paused", "suspended": "suspended", "undeployed": "suspended"}.get(
        state, "running"
    )
    return driver


def command(state: str, kind: CommandKind) -> CommandReceived:
    node = "1.1" if state in ("shielded", "suspended") else "1"
    return CommandReceived(kind, "c1", **({"to_node": node} if kind == "reset" else {}))


# How it stands once both have been applied: status and execution. The first terminal state is final; only a reset
# opens another execution (a retry would, had the run failed). A signal is for the run, and told again to that execution;
# results of steps, timers and children are for the execution that asked for them. A pause is followed by a resume;
# a run that is paused before its next execution has begun asks for its step only then, and no result of that is there.
COMMAND_FIRST = """
                cancel       terminate     pause        resume       retry        reset
    step        cancelled/1  terminated/1  completed/1  completed/1  completed/1  running/2
    backing-off cancelled/1  terminated/1  completed/1  completed/1  completed/1  running/2
    timer       cancelled/1  terminated/1  completed/1  completed/1  completed/1  running/2
    signal      cancelled/1  terminated/1  completed/1  completed/1  completed/1  completed/2
    child       cancelled/1  terminated/1  completed/1  completed/1  completed/1  running/2
    shielded    cancelled/1  terminated/1  completed/1  completed/1  completed/1  running/2
    tidying     cancelled/1  terminated/1  cancelled/1  cancelled/1  cancelled/1  running/2
    continuing  cancelled/2  terminated/2  running/2    completed/2  completed/2  completed/2
    paused      paused/1     terminated/1  completed/1  completed/1  paused/1     running/2
    suspended   suspended/1  terminated/1  suspended/1  suspended/1  suspended/1  running/2
    undeployed  suspended/1  terminated/1  suspended/1  suspended/1  suspended/1  suspended/2
"""
COMMAND_LAST = """
                cancel       terminate     pause        resume       retry        reset
    step        completed/1  completed/1   completed/1  completed/1  completed/1  running/2
    backing-off completed/1  completed/1   completed/1  completed/1  completed/1  running/2
    timer       completed/1  completed/1   completed/1  completed/1  completed/1  running/2
    signal      completed/1  completed/1   completed/1  completed/1  completed/1  completed/2
    child       completed/1  completed/1   completed/1  completed/1  completed/1  running/2
    shielded    completed/1  completed/1   completed/1  completed/1  completed/1  running/2
    tidying     cancelled/1  cancelled/1   cancelled/1  cancelled/1  cancelled/1  running/2
    continuing  completed/2  completed/2   completed/2  completed/2  completed/2  running/3
    paused      paused/1     terminated/1  completed/1  completed/1  paused/1     running/2
    suspended   suspended/1  terminated/1  suspended/1  suspended/1  suspended/1  running/2
    undeployed  suspended/1  terminated/1  suspended/1  suspended/1  suspended/1  suspended/2
"""


def _cases(first: bool, table: str) -> list[tuple[bool, str, str, str]]:
    kinds, *lines = table.strip().splitlines()
    rows = {line.split()[0]: line.split()[1:] for line in lines}
    return [(first, s, k, e) for s, cells in rows.items() for k, e in zip(kinds.split(), cells, strict=True)]


CASES = [*_cases(True, COMMAND_FIRST), *_cases(False, COMMAND_LAST)]


@pytest.mark.parametrize(("first", "state", "kind", "expected"), CASES)
@pytest.mark.parametrize("lost", [False, True])
def test_each_command_races_each_result(first: bool, state: str, kind: CommandKind, expected: str, lost: bool) -> None:
    driver = waiting(state)
    events: list[AnyEvent] = list(WAITING[state][2])
    events.insert(0 if first else len(events), command(state, kind))
    if kind == "pause":
        events.append(CommandReceived("resume", "c2"))
    at = driver.header.now + 60_000
    together = waiting(state)
    together.apply(*(Stamped(at, event) for event in events))
    for event in events:
        was = (driver.status, driver.header.execution)
        if lost:
            driver.lose()
        sent = len(driver.actions)
        driver.hear(event, at=at)
        if was[0] in CLOSED and driver.header.execution == was[1]:
            assert driver.status == was[0], "the first terminal state is final"
        if driver.status in ("terminated", "paused") or driver.header.cancel_requested:
            assert not [a for a in driver.actions[sent:] if isinstance(a, (DispatchAttempt, StartChild))]
    if kind == "pause" and first and state == "timer":
        driver.pass_time(at)  # it came while the run was paused, when no timer fires: it is due again
        together.pass_time(at)
    assert f"{driver.status}/{driver.header.execution}" == expected
    assert state_bytes(together.state) == state_bytes(driver.state), "one batch or several: the same"
    assert together.lifecycle() == driver.lifecycle()


def test_the_tables_are_complete() -> None:
    assert {(f, s, k) for f, s, k, _ in CASES} == {
        (f, s, k) for f in (True, False) for s in WAITING for k in get_args(CommandKind)
    }


@pytest.mark.parametrize("state", ["step", "backing-off"])
def test_a_run_that_failed_meanwhile_is_retried_from_there(state: str) -> None:
    """A retry that comes before the failure is refused, one that comes after it opens the next execution."""
    driver = waiting(state)
    generation = driver.node("1").generation
    at = driver.header.now + 60_000
    driver.hear(CommandReceived("retry", "c1"), at=at)
    if state == "backing-off":
        driver.hear(TimerFired(1, "1", generation), at=at)
    failure = Failure("user", "Oops", "no", retryable=False)
    driver.hear(AttemptFinished(1, "1", generation, "failed", None, failure), at=at)
    assert (driver.status, driver.header.execution) == ("failed", 1)
    driver.hear(CommandReceived("retry", "c2"), at=at)
    assert (driver.status, driver.header.execution) == ("running", 2)
