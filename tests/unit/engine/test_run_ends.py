"""What ends a run and what suspends it: docs say it in a paragraph, these tables say it in full."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from typing import Any

import pytest

from ductor_stream.engine.events import Failure, Redeployed
from ductor_stream.engine.state import encode_header, encode_records
from ductor_stream.errors import ChildError, InvalidValue, StepCancelled, StepError, StepTimeout, TerminalError
from unit.engine.driver import Driver
from unit.engine.programs import STEPS, workflow

A = STEPS["a"]


class OutOfStock(Exception):
    """A class that the workflow names in ``fails_on``."""


class SoldOut(OutOfStock):
    """One below it."""


class Unnamed(BaseException):
    """No Exception, and nobody expects it."""


class Silent(Exception):
    """It cannot even be shown."""

    def __str__(self) -> str:
        raise RuntimeError("no text")


def step_error(code: str = "user", type: str = "CardDeclined") -> StepError:
    return StepError("declined", type=type, error_code=code, details={"a": 1})


FAILS: list[tuple[BaseException, str, str, str]] = [
    (TerminalError("no"), "user", "TerminalError", "no"),
    (TerminalError("no", type="CardDeclined"), "user", "CardDeclined", "no"),
    (step_error(), "user", "CardDeclined", "declined"),
    (StepTimeout("late", type="StepTimeout", error_code="worker_lost"), "worker_lost", "StepTimeout", "late"),
    (StepCancelled("stopped", type="StepCancelled", error_code="cancelled"), "cancelled", "StepCancelled", "stopped"),
    (ChildError("gone", run_id="c", status="failed", type="Oops"), "child", "Oops", "gone"),
    (TimeoutError("too late"), "user", "TimeoutError", "too late"),
    (OutOfStock("none left"), "user", "OutOfStock", "none left"),
    (SoldOut("none left"), "user", "SoldOut", "none left"),
    (ExceptionGroup("both", [step_error(), TerminalError("no")]), "user", "CardDeclined", "declined"),
    (
        ExceptionGroup("deep", [ExceptionGroup("", [TerminalError("no")]), OutOfStock("x")]),
        "user",
        "TerminalError",
        "no",
    ),
    (TerminalError("lone \ud800"), "user", "TerminalError", "lone ?"),
    (TerminalError("x" * 100_000), "user", "TerminalError", "x" * 16_384),
]
SUSPENDS: list[tuple[BaseException, str]] = [
    (ValueError("a bug"), "ValueError: a bug"),
    (KeyError("gone"), "KeyError: 'gone'"),
    (ExceptionGroup("mixed", [TerminalError("no"), ValueError("a bug")]), "ExceptionGroup: mixed (2 sub-exceptions)"),
    (BaseExceptionGroup("worse", [Unnamed()]), "BaseExceptionGroup: worse (1 sub-exception)"),
    (RecursionError("too deep"), "RecursionError: too deep"),
    (MemoryError(), "MemoryError: "),
    (SystemExit(3), "SystemExit: 3"),
    (GeneratorExit(), "GeneratorExit: "),
    (StopIteration(), "RuntimeError: coroutine raised StopIteration"),
    (Unnamed("what"), "Unnamed: what"),
    (asyncio.CancelledError("nobody asked"), "CancelledError: nobody asked"),
    (InvalidValue("total: expected str"), "InvalidValue: total: expected str"),
    (ValueError("lone \ud800"), "ValueError: lone ?"),
    (Silent(), "Silent: (Silent that cannot be shown)"),
]


def named(error: BaseException) -> str:
    return type(error).__name__


def raising(error: BaseException) -> Driver:
    """A run whose function raises the error after its first step."""

    async def raises(run: Any) -> None:
        await run.step(A, 1)
        raise error  # THE BUG

    driver = Driver(workflow(raises, fails_on=(OutOfStock,)))
    driver.start()
    driver.finish("1")
    assert encode_records(driver.records)
    assert encode_header(driver.header)
    return driver


[_line] = [number for number, line in enumerate(inspect.getsource(raising).splitlines()) if line.endswith("# THE BUG")]
THE_BUG = f"{__file__}:{raising.__code__.co_firstlineno + _line}"


@pytest.mark.parametrize(("error", "code", "type", "message"), FAILS, ids=[named(case[0]) for case in FAILS])
def test_what_fails_a_run(error: BaseException, code: str, type: str, message: str) -> None:
    driver = raising(error)
    assert driver.status == "failed"
    failure = driver.header.failure
    assert failure is not None
    assert (failure.code, failure.type, failure.message, failure.retryable) == (code, type, message, False)
    assert driver.lifecycle() == ["run.started", "run.failed"]


@pytest.mark.parametrize(("error", "text"), SUSPENDS, ids=[named(case[0]) for case in SUSPENDS])
def test_what_suspends_a_run_with_its_line(error: BaseException, text: str) -> None:
    driver = raising(error)
    code, message = driver.parked
    assert (driver.status, code) == ("suspended", "bug")
    assert message.startswith(text)
    assert f"(at {THE_BUG} in raises)" in message
    assert driver.lifecycle() == ["run.started", "run.suspended"]
    parked = driver.header.parked
    assert parked is not None
    assert parked.stack is not None
    assert f"{THE_BUG} in raises" in parked.stack


def test_details_of_an_error_are_kept_even_where_they_are_no_json() -> None:
    assert raising(step_error()).header.failure.details == b'{"a":1}'  # type: ignore[union-attr]
    odd = TerminalError("no", details=object)
    assert raising(odd).header.failure.details == b"\"<class 'object'>\""  # type: ignore[union-attr]


def test_a_failure_that_is_caught_ends_nothing() -> None:
    async def copes(run: Any) -> Any:
        try:
            await run.step(A, 1)
        except StepError as error:
            return [type(error).__name__, error.type, error.message, error.error_code, error.details, error.attempts]

    for code, kind in (("user", "StepError"), ("heartbeat_lost", "StepTimeout"), ("cancelled", "StepCancelled")):
        driver = Driver(workflow(copes))
        driver.start()
        failure = Failure(code, "CardDeclined", "declined", retryable=False, details=b"[1]")
        driver.finish("1", failure=failure)
        assert driver.result == [kind, "CardDeclined", "declined", code, [1], 1]


def test_details_that_are_no_json_reach_the_code_as_text() -> None:
    async def copes(run: Any) -> Any:
        try:
            await run.step(A, 1)
        except StepError as error:
            return error.details

    driver = Driver(workflow(copes))
    driver.start()
    driver.finish("1", failure=Failure("user", "Oops", "no", retryable=False, details=b"{not json"))
    assert driver.result == "{not json"


def test_a_step_that_timed_out_is_no_timeout_error() -> None:
    """Else ``asyncio.timeout`` around a step would be mistaken for the step's own."""
    assert not issubclass(StepTimeout, TimeoutError)


def test_the_timeout_of_a_block_fails_the_run() -> None:
    async def hurries(run: Any) -> Any:
        async with asyncio.timeout(5):
            await run.step(A, 1)

    driver = Driver(workflow(hurries))
    driver.start()
    driver.pass_time()
    assert driver.header.failure is not None
    assert (driver.status, driver.header.failure.type) == ("failed", "TimeoutError")


# -- reduce counts even when plan fails -------------------------------------------------------


def fixed_after(bug: Callable[..., Any]) -> Driver:
    driver = Driver(workflow(bug, digest="buggy"))
    driver.start()
    return driver


def test_the_result_that_met_a_bug_is_kept_and_heard_by_mended_code() -> None:
    async def buggy(run: Any) -> Any:
        value = await run.step(A, 1)
        raise ValueError(value)

    async def mended(run: Any) -> Any:
        return await run.step(A, 1)

    driver = fixed_after(buggy)
    driver.finish("1", "paid")
    [record] = driver.records[1:]
    assert record.decisions is None
    assert record.parked is not None
    assert driver.state.nodes == {}, "its node is closed: the step is not run again"
    assert driver.hear(Redeployed("buggy", "1")).records == [], "the same code would only fail again"
    driver.deploy(workflow(mended, digest="mended"))
    driver.hear(Redeployed("mended", "1"))
    assert driver.result == "paid"


def test_a_person_may_resume_with_the_same_code() -> None:
    """Whatever was wrong may have been outside the code; if not, the run is suspended again."""
    tries: list[int] = []

    async def moody(run: Any) -> Any:
        value = await run.step(A, 1)
        tries.append(1)
        if len(tries) == 1:
            raise ValueError("not today")
        return value

    driver = fixed_after(moody)
    driver.finish("1", "paid")
    driver.order("resume")
    assert driver.result == "paid"
    assert driver.lifecycle() == ["run.started", "run.suspended", "run.resumed", "run.completed"]
