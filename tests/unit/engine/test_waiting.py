"""R9: each waiting state has its sentence, to the letter; and what an owner is told of an end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest

from ductor_stream.engine.actions import CommandChild, EmitLifecycle, TellParent
from ductor_stream.engine.definition import StepOptions
from ductor_stream.engine.events import AttemptFinished, AttemptLost, ChildFinished, Failure, Parent
from ductor_stream.engine.state import Header, goes_on
from ductor_stream.engine.waiting import waiting_for
from unit.engine.driver import Driver, abandoning
from unit.engine.programs import CHILD, SIGNALS, STEPS, step, workflow

OPTIONS = STEPS["a"].definition.options
SLOW = step("slow", StepOptions(retry=OPTIONS.retry, queue="night"))
NO, FATAL = Failure("user", "Oops", "no"), Failure("user", "Oops", "no", retryable=False)


@pytest.fixture(autouse=True)
def _no_coroutine_is_left() -> Iterator[None]:
    with abandoning():
        yield


async def _step(run: Any) -> Any:
    await run.step(SLOW)


async def _signal(run: Any) -> Any:
    await run.wait_signal(SIGNALS["x"])


async def _child(run: Any) -> Any:
    await run.child(CHILD, 1)


async def _sleep(run: Any) -> Any:
    await asyncio.sleep(60)


async def _many(run: Any) -> Any:
    await asyncio.gather(*(run.wait_signal(SIGNALS["x"]) for _ in range(5)))


async def _laps(run: Any) -> Any:
    run.continue_as_new()


async def _breaks(run: Any) -> Any:
    raise KeyError("x")


async def _ends(run: Any) -> Any:
    return 7


def _nothing(driver: Driver) -> None:
    pass


def _pause(driver: Driver) -> None:
    driver.order("pause")
    driver.send("x", 1)


def _lost(driver: Driver) -> None:
    driver.hear(AttemptLost(1, "1", 1), at=9_000)


def _rejected(driver: Driver) -> None:
    driver.hear(AttemptFinished(1, "1", 1, "rejected", None, NO), at=9_000)


START, LATER = "1970-01-01T00:00:01Z", "1970-01-01T00:00:09Z"


@pytest.mark.parametrize(
    ("program", "happens", "told"),
    [
        (_step, _nothing, f"step slow, attempt 1, dispatched to queue night at {START} (node 1)"),
        (_step, _lost, f"step slow, attempt 1, dispatched to queue night at {START}, sent again at {LATER} (redrive 1: its task was lost unread) (node 1)"),
        (_step, lambda driver: driver.finish("1", failure=NO, at=9_000), f"step slow backs off until {LATER}, attempt 2 next after Oops: no (node 1)"),
        (_step, _rejected, "no worker on night knows step slow; offered again at 1970-01-01T00:00:10Z (node 1)"),
        (_step, _pause, "paused; 1 event(s) held until it is resumed"),
        (_signal, _nothing, "signal x is missing (node 1)"),
        (_child, _nothing, "child run r/1/1 of wf has not ended (node 1)"),
        (_sleep, _nothing, "timer until 1970-01-01T00:01:01Z (node 1)"),
        (_many, _nothing, "; ".join(f"signal x is missing (node {n}.1)" for n in (1, 2, 3)) + "; and 2 more"),
        (_laps, _nothing, "about to begin its next execution"),
        (_ends, _nothing, None),
    ],
)  # fmt: skip
def test_why_a_run_waits(program: Any, happens: Callable[[Driver], Any], told: str | None) -> None:
    driver = Driver(workflow(program))
    driver.start()
    happens(driver)
    assert waiting_for(driver.state, driver.header.now) == told


def test_why_a_suspended_run_waits() -> None:
    driver = Driver(workflow(_breaks))
    driver.start()
    told = waiting_for(driver.state, driver.header.now)
    code, message = driver.parked
    assert told == f"suspended, {code}: {message}; deploy other code under version 1, or resume it"


# -- ends ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("program", "happens", "status", "result"),
    [
        (_ends, _nothing, "completed", b"7"),
        (_step, lambda driver: driver.finish("1", failure=FATAL), "failed", None),
        (_step, lambda driver: driver.order("terminate"), "terminated", None),
    ],
)
def test_the_end_is_told_to_everybody_and_to_the_parent(program: Any, happens: Any, status: str, result: Any) -> None:
    parent = Parent("above", 2, "4")
    driver = Driver(workflow(program))
    driver.start(parent=parent)
    happens(driver)
    event = driver.done(EmitLifecycle)[-1]
    assert (event.type, event.result, event.failure) == (f"run.{status}", result, driver.header.failure)
    (told,) = driver.done(TellParent)
    assert told == TellParent(parent, 1, ChildFinished(2, "4", "r", status, result, driver.header.failure))


@pytest.mark.parametrize("policy", ["cancel", "terminate", "abandon"])
def test_what_becomes_of_a_child_is_said_with_who_and_why(policy: Any) -> None:
    async def asks(run: Any) -> Any:
        await run.child(CHILD, 1, parent_close=policy)

    driver = Driver(workflow(asks))
    driver.start()
    node = driver.node("1")
    driver.order("terminate")
    expected = [] if policy == "abandon" else [CommandChild(1, node, policy, "run terminated")]
    assert driver.done(CommandChild) == expected


@pytest.mark.parametrize("field", [field.name for field in msgspec.structs.fields(Header)])
def test_a_header_is_written_unless_its_records_tell_all_that_has_changed(field: str) -> None:
    driver = Driver(workflow(_step))
    driver.start()
    before = driver.state
    after = msgspec.structs.replace(before, header=msgspec.structs.replace(before.header, **{field: object()}))
    assert goes_on(before, after) is (field in ("seq", "now"))
    assert not goes_on(None, before)


def test_the_header_of_a_run_that_has_ended_is_written() -> None:
    driver = Driver(workflow(_ends))
    driver.start()
    assert not goes_on(driver.state, driver.state)


def test_what_is_open_when_a_run_continues_as_new_is_stopped_and_said() -> None:
    async def laps(run: Any) -> Any:
        asyncio.ensure_future(run.child(CHILD, 1))
        await run.step(SLOW)
        run.continue_as_new()

    driver = Driver(workflow(laps))
    driver.start()
    child = driver.node("1.1")
    driver.finish("2", at=9_000)
    assert driver.done(CommandChild) == [CommandChild(1, child, "cancel", "run continued as new")]
    (event,) = (each for each in driver.done(EmitLifecycle) if each.type == "run.continued")
    assert (event.execution, event.now) == (1, 9_000)


def test_what_a_failure_says_counts_towards_what_a_run_may_keep() -> None:
    def size(failure: Failure) -> int:
        driver = Driver(workflow(_step))
        driver.start()
        driver.finish("1", failure=failure)
        return driver.state.size

    short, long = Failure("user", "Oops", ""), Failure("user", "Oops", "abc", details=b"12345", stack="1234567")
    assert size(long) - size(short) == 3 + 5 + 7
