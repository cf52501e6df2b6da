"""Values that do not fit, code that never waits and code that cannot begin: each has its own clear end."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ductor_stream.engine.planners import loop
from ductor_stream.errors import InvalidValue
from unit.engine.driver import Driver
from unit.engine.programs import CHILD, STEPS, step, workflow

A = STEPS["a"]


def test_an_input_that_does_not_fit_fails_the_run_before_its_code_runs() -> None:
    async def takes(run: Any, order: dict[str, int]) -> None:
        raise AssertionError("never reached")

    driver = Driver(workflow(takes, takes_input=True, input_type=dict[str, int]))
    driver.start(input=b'{"items":"many"}')
    failure = driver.header.failure
    assert failure is not None
    assert (driver.status, failure.type) == ("failed", "InvalidInput")
    assert "items" in failure.message or "[...]" in failure.message


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (object(), "object cannot be written as JSON"),
        ({"a": [float("nan")]}, "JSON has no NaN"),
        ("x" * 1_000_000, "900,000 are the limit"),
    ],
)
def test_a_result_that_cannot_be_written_suspends_the_run(value: Any, says: str) -> None:
    async def returns(run: Any) -> Any:
        return value

    driver = Driver(workflow(returns))
    driver.start()
    assert (driver.status, driver.parked[0]) == ("suspended", "bug")
    assert says in driver.parked[1]


@pytest.mark.parametrize("caught", [False, True])
def test_a_step_output_that_does_not_fit_is_raised_where_it_is_awaited(caught: bool) -> None:
    async def typed(run: Any) -> Any:
        try:
            return await run.step(step("count", output=int))
        except InvalidValue as error:
            if not caught:
                raise
            return str(error)

    driver = Driver(workflow(typed))
    driver.start()
    driver.finish("1", "many")
    assert driver.status == ("completed" if caught else "suspended")
    text = driver.result if caught else driver.parked[1]
    assert "int" in text


def test_an_argument_that_cannot_be_written_is_the_codes_bug() -> None:
    async def passes(run: Any) -> Any:
        await run.step(A, object())  # HERE

    driver = Driver(workflow(passes))
    driver.start()
    assert driver.parked[0] == "bug"
    assert "object cannot be written as JSON" in driver.parked[1]


@pytest.mark.parametrize("text", ["\ud800", "a\0b", "x" * 600, 5])
@pytest.mark.parametrize("kind", ["child", "patched", "version"])
def test_a_text_that_no_record_or_database_can_hold_is_the_codes_bug(kind: str, text: Any) -> None:
    """R11: in a record it would make the commit of a whole batch fail."""

    async def makes_up(run: Any) -> Any:
        match kind:
            case "child":
                await run.child(CHILD, 1, run_id=text)
            case "patched":
                run.patched(text)
            case _:
                run.continue_as_new(version=text)

    driver = Driver(workflow(makes_up))
    driver.start()
    assert driver.parked[0] == "bug"
    assert driver.parked[1].startswith("InvalidValue: ")


def test_code_that_never_waits_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    async def spins(run: Any) -> None:
        while True:
            await asyncio.sleep(0)  # HERE

    defaults = loop.WorkflowLoop.run_ready.__kwdefaults__
    monkeypatch.setitem(defaults, "max_callbacks", 5_000)
    driver = Driver(workflow(spins))
    driver.start()
    code, message = driver.parked
    assert (driver.status, code) == ("suspended", "overrun")
    assert message.startswith("more than 5,000 callbacks")
    assert f"{__file__}:" in message


def test_endless_recursion_is_a_bug_with_a_stack_of_bounded_length() -> None:
    def deeper(n: int) -> int:
        return deeper(n + 1)

    async def recurses(run: Any) -> int:
        return deeper(0)

    driver = Driver(workflow(recurses))
    driver.start()
    assert driver.parked[0] == "bug"
    assert driver.parked[1].startswith("RecursionError")
    assert driver.header.parked is not None
    assert len((driver.header.parked.stack or "").splitlines()) <= 50


def test_a_function_that_cannot_even_be_called_is_a_bug() -> None:
    driver = Driver(workflow(lambda: None))  # type: ignore[misc]
    driver.start()
    assert driver.parked[0] == "bug"
    assert "TypeError" in driver.parked[1]
