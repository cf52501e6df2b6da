"""Mistakes in declarations are refused at import, with the place and the remedy."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from ductor_stream import App, Retry, Run, Use
from ductor_stream.errors import InvalidDefinition


class Plain:
    """No value that crosses the wire."""


def twice(app: App) -> None:
    @app.step
    def a() -> None: ...

    @app.step(name="a")
    def b() -> None: ...


def same_version(app: App) -> None:
    @app.workflow
    async def w(run: Run) -> None: ...

    @app.workflow(name="w")
    async def other(run: Run) -> None: ...


def starred(app: App) -> None:
    @app.step
    def a(*args: str) -> None: ...


def double_starred(app: App) -> None:
    @app.step
    def a(**more: str) -> None: ...


def generator(app: App) -> None:
    @app.step
    def a() -> Any:
        yield 1


def foreign_type(app: App) -> None:
    @app.step
    def a(it: Plain) -> None: ...


def foreign_result(app: App) -> None:
    @app.step
    def a() -> Plain:
        return Plain()


def unresolvable(app: App) -> None:
    @app.step
    def a(it: Nowhere) -> None: ...  # type: ignore[name-defined]  # noqa: F821


def wrong_default(app: App) -> None:
    @app.step
    def a(it: int = None) -> None: ...  # type: ignore[assignment]  # noqa: RUF013


def positional_resource(app: App) -> None:
    @app.resource
    async def pool() -> AsyncIterator[int]:
        yield 1

    @app.step
    def a(it: int = Use(pool)) -> None: ...


def use_of_a_function(app: App) -> None:
    @app.step
    def a(*, it: int = Use(len)) -> None: ...  # type: ignore[arg-type]


def plain_resource(app: App) -> None:
    @app.resource  # type: ignore[arg-type]
    async def pool() -> int:
        return 1


def async_in_a_process(app: App) -> None:
    @app.step(executor="process")
    async def a() -> None: ...


def unknown_executor(app: App) -> None:
    @app.step(executor="gpu")  # type: ignore[call-overload, untyped-decorator]
    def a() -> None: ...


def unknown_option(app: App) -> None:
    @app.step(tmeout=3)  # type: ignore[call-overload, untyped-decorator]
    def a() -> None: ...


def negative_timeout(app: App) -> None:
    @app.step(timeout=-1)
    def a() -> None: ...


def endless_timeout(app: App) -> None:
    @app.step(timeout=1e13)
    def a() -> None: ...


def no_timeout(app: App) -> None:
    @app.step(timeout=None)  # type: ignore[call-overload, untyped-decorator]
    def a() -> None: ...


def bad_queue(app: App) -> None:
    @app.step(queue="a b")
    def a() -> None: ...


def not_a_retry(app: App) -> None:
    @app.step(retry=3)  # type: ignore[call-overload, untyped-decorator]
    def a() -> None: ...


def plain_workflow(app: App) -> None:
    @app.workflow  # type: ignore[arg-type]
    def w(run: Run) -> int:
        return 1


def no_run(app: App) -> None:
    @app.workflow  # type: ignore[arg-type]
    async def w() -> None: ...


def order_instead_of_run(app: App) -> None:
    @app.workflow  # type: ignore[arg-type]
    async def w(order: str) -> None: ...


def two_inputs(app: App) -> None:
    @app.workflow  # type: ignore[arg-type]
    async def w(run: Run, a: int, b: int) -> None: ...


def input_with_a_default(app: App) -> None:
    @app.workflow
    async def w(run: Run, a: int = 3) -> None: ...


def bad_version(app: App) -> None:
    @app.workflow(version="1 beta")
    async def w(run: Run) -> None: ...


def fails_on_a_name(app: App) -> None:
    @app.workflow(fails_on=("KeyError",))  # type: ignore[arg-type]
    async def w(run: Run) -> None: ...


def signal_of_a_string(app: App) -> None:
    app.signal("approved", "bool")


def external_of_a_class(app: App) -> None:
    app.external_step("ship", input=Plain, output=str)


def lambda_step(app: App) -> None:
    app.step(lambda: None)


MISTAKES: list[tuple[Callable[[App], None], str]] = [
    (twice, r"step 'a' is declared already at .*test_app_mistakes\.py:\d+; give one of them another name"),
    (same_version, "workflow 'w' version '1' is declared already at .*; give one another version"),
    (starred, r"step 'a': \*args: .*cannot cross the wire.*pass a list"),
    (double_starred, r"step 'a': \*\*more: .*cannot cross the wire"),
    (generator, "step 'a': a step returns one value; a generator"),
    (foreign_type, "step 'a': parameter 'it': Plain cannot cross the wire: use a dataclass"),
    (foreign_result, "step 'a': the result: Plain cannot cross the wire"),
    (unresolvable, "the annotation of parameter 'it' cannot be resolved .*Nowhere.*import its names at module level"),
    (wrong_default, "the default of 'it' does not fit its annotation: it: Expected `int`, got `null`"),
    (positional_resource, r"the resource 'it' has to be keyword-only: put a `\*` before it"),
    (use_of_a_function, r"Use\(…\) of 'it' takes a function declared with @app\.resource"),
    (plain_resource, "resource 'pool': a resource is an `async def` that yields once"),
    (async_in_a_process, "an async step runs on the worker's loop"),
    (unknown_executor, "executor is 'gpu'; it is 'thread' or 'process'"),
    (unknown_option, r"step 'a': unknown option 'tmeout' \(did you mean 'timeout'\?\)"),
    (negative_timeout, "step 'a': timeout is -1; it has to be positive"),
    (endless_timeout, "step 'a': timeout is 10000000000000.0; the longest is a century"),
    (no_timeout, "timeout is None; an attempt without one could hang for ever"),
    (bad_queue, "step 'a': queue is 'a b'; a name is 1 to 128 characters"),
    (not_a_retry, r"retry is 3; give a Retry\(…\)"),
    (plain_workflow, "workflow 'w': a workflow is an `async def` function"),
    (no_run, r"workflow 'w': a workflow takes the run and at most one input"),
    (order_instead_of_run, r"the first parameter is the run: `async def w\(run: Run, …\)`"),
    (two_inputs, "at most one input.*put several into a dataclass"),
    (input_with_a_default, "the input 'a' has a default; only None can be one"),
    (bad_version, "workflow 'w': its version is '1 beta'"),
    (fails_on_a_name, "fails_on takes exception classes, got 'KeyError'"),
    (signal_of_a_string, "signal 'approved': its payload: bool cannot cross the wire"),
    (external_of_a_class, "step 'ship': its input: Plain cannot cross the wire"),
    (lambda_step, "its name is '<lambda>'"),
]


@pytest.mark.parametrize(("declare", "problem"), MISTAKES, ids=lambda case: getattr(case, "__name__", ""))
def test_a_mistake_is_told_with_its_place(declare: Callable[[App], None], problem: str) -> None:
    app = App("shop")
    with pytest.raises(InvalidDefinition, match=problem) as caught:
        declare(app)
    place = re.match(r"(.*):(\d+): ", str(caught.value))
    assert place is not None
    first = declare.__code__.co_firstlineno
    source = Path(__file__).read_text().splitlines()
    assert place[1] == __file__
    assert first < int(place[2]) < first + 9, source[int(place[2]) - 1]


@pytest.mark.parametrize("function", [print, Plain, 3])
def test_what_is_no_function_is_no_step(function: Any) -> None:
    with pytest.raises(InvalidDefinition, match="a step is a function"):
        App("shop").step(function)


@pytest.mark.parametrize("namespace", ["", "a.b", "a b", "x" * 65, None])
def test_a_namespace_has_its_alphabet(namespace: Any) -> None:
    with pytest.raises(InvalidDefinition, match=r"test_app_mistakes\.py:\d+: "):
        App(namespace)


@pytest.mark.parametrize(
    "numbers",
    [
        {"max_attempts": 0},
        {"max_attempts": 1.5},
        {"initial": -1},
        {"initial": "1"},
        {"factor": 0.5},
        {"factor": float("inf")},
        {"maximum": float("nan")},
        {"jitter": 2},
        {"non_retryable": "CardDeclined"},
        {"non_retryable": (KeyError,)},
    ],
)
def test_a_retry_refuses_numbers_that_cannot_be(numbers: dict[str, Any]) -> None:
    with pytest.raises(InvalidDefinition, match="^Retry: "):
        Retry(**numbers)


def test_a_conflict_in_include_takes_nothing_over() -> None:
    one, other = App("one"), App("other")
    twice_named = [app.step(name="a")(lambda: None) for app in (one, other)]
    other.signal("s", int)
    with pytest.raises(InvalidDefinition, match="step 'a' is declared already"):
        one.include(other)
    assert one.steps == {"a": twice_named[0]}
    assert one.signals == {}
    with pytest.raises(InvalidDefinition, match="include takes an App"):
        one.include("other")  # type: ignore[arg-type]
