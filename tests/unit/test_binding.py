"""Arguments of a call to the array of a task, and back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from ductor_stream.engine.binding import Parameter, Parameters
from ductor_stream.errors import InvalidValue


@dataclass
class Order:
    id: str
    items: list[str]


ORDER = Order("a", ["x"])
CHARGE = Parameters(
    "charge",
    [Parameter("order", Order), Parameter("note", str, "-"), Parameter("times", int, 1, keyword_only=True)],
)


@pytest.mark.parametrize(
    ("args", "kwargs", "raw"),
    [
        ((ORDER,), {}, b'[{"id":"a","items":["x"]},"-",1]'),
        ((ORDER, "n"), {"times": 3}, b'[{"id":"a","items":["x"]},"n",3]'),
        ((), {"times": 3, "order": ORDER}, b'[{"id":"a","items":["x"]},"-",3]'),
    ],
)
def test_a_call_becomes_an_array_and_a_call_again(args: Any, kwargs: Any, raw: bytes) -> None:
    assert CHARGE.bind(args, kwargs) == raw
    positional, named = CHARGE.call(CHARGE.decode(raw))
    assert (positional[0], list(named)) == (ORDER, ["times"])


@pytest.mark.parametrize(
    ("args", "kwargs", "error", "problem"),
    [
        ((), {}, TypeError, r"charge\(\) is missing the argument 'order'"),
        ((ORDER, "n", 3), {}, TypeError, r"charge\(\) takes 2 positional arguments, got 3"),
        ((ORDER,), {"order": ORDER}, TypeError, "multiple values for argument 'order'"),
        ((ORDER,), {"tmies": 3}, TypeError, "unexpected keyword argument 'tmies'"),
        ((7,), {}, InvalidValue, "^order: Expected `object`, got `int`"),
        ((Order("a", [3]),), {}, InvalidValue, r"^order\.items\[0\]: Expected `str`, got `int`"),  # type: ignore[list-item]
        ((ORDER,), {"times": "3"}, InvalidValue, "^times: Expected `int`, got `str`"),
        ((ORDER, object()), {}, InvalidValue, "^note: object cannot be written"),
    ],
)
def test_a_wrong_call_says_what_is_wrong(args: Any, kwargs: Any, error: type[Exception], problem: str) -> None:
    with pytest.raises(error, match=problem):
        CHARGE.bind(args, kwargs)


def test_an_older_callers_array_may_leave_out_what_has_a_default() -> None:
    assert CHARGE.decode(b'[{"id":"a","items":[]}]') == [Order("a", []), "-", 1]


@pytest.mark.parametrize(
    ("raw", "problem"),
    [
        (b"[]", "^input: charge needs the argument 'order'"),
        (b"[1,2,3,4]", "^input: charge takes 3 arguments, got 4"),
        (b'{"id":"a"}', "^input: Expected `array`"),
        (b"[", "^input: "),
        (b'[{"id":"a","items":[1]}]', r"^order\.items\[0\]: Expected `str`"),
        (b'[{"id":"a","items":[]},5]', "^note: Expected `str`"),
        (b'[{"id":"a","items":[]},"n","x"]', "^times: Expected `int`"),
    ],
)
def test_an_array_that_does_not_fit_says_where(raw: bytes, problem: str) -> None:
    with pytest.raises(InvalidValue, match=problem):
        CHARGE.decode(raw)


def test_no_parameters_are_an_empty_array() -> None:
    nothing = Parameters("nothing", [])
    assert nothing.bind((), {}) == b"[]"
    assert nothing.decode(b"[]") == []
    with pytest.raises(TypeError, match=r"^nothing\(\) takes 0 positional arguments"):
        nothing.bind((1,), {})


def test_all_that_is_missing_is_named() -> None:
    with pytest.raises(TypeError, match=r"^two\(\) is missing the argument 'a', 'b'$"):
        Parameters("two", [Parameter("a"), Parameter("b")]).bind((), {})


def test_a_positional_only_parameter_has_no_name() -> None:
    only = Parameters("only", [Parameter("x", int, positional_only=True)])
    assert only.bind((1,), {}) == b"[1]"
    with pytest.raises(TypeError, match="unexpected keyword argument 'x'"):
        only.bind((), {"x": 1})
    with pytest.raises(TypeError, match="unexpected keyword argument 'x'"):
        only.bind((1,), {"x": 1})
