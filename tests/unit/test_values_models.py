"""Pydantic models cross the wire by their own JSON form; a stand-in with the same methods is enough to see how."""

from __future__ import annotations

from typing import Any, ClassVar, Self

import msgspec
import pytest

from ductor_stream.engine import values
from ductor_stream.errors import InvalidValue


class Refused(ValueError):
    """What pydantic's ValidationError is to us."""

    def errors(self) -> list[dict[str, Any]]:
        return [{"loc": ("lines", 1, "sku"), "msg": "Input should be a valid string"}]


def as_lists(value: Any) -> Any:
    """Sets as lists, in the order in which they happen to be."""
    if isinstance(value, dict):
        return {key: as_lists(each) for key, each in value.items()}
    return [as_lists(each) for each in value] if isinstance(value, list | tuple | set) else value


class Model:
    """A model as pydantic makes them, as far as the wire is concerned."""

    schema: ClassVar[dict[str, Any]] = {"type": "object"}

    def __init__(self, **fields: Any) -> None:
        self.fields = fields

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Model) and other.fields == self.fields

    def model_dump(self, *, mode: str, by_alias: bool) -> dict[str, Any]:
        assert by_alias
        if mode == "python":
            return dict(self.fields)
        assert mode == "json"
        return {key: as_lists(value) for key, value in self.fields.items()}

    @classmethod
    def model_validate(cls, found: Any) -> Self:
        raise AssertionError("a strict model would refuse a date as a string this way")

    @classmethod
    def model_validate_json(cls, raw: bytes) -> Self:
        fields = msgspec.json.decode(raw)
        if fields.get("lines") == "bad":
            raise Refused("1 validation error")
        if fields.get("lines") == "worse":
            raise ValueError("a validator's own")
        return cls(**fields)

    @classmethod
    def model_json_schema(cls) -> dict[str, Any]:
        return cls.schema


class WithSets(Model):
    schema: ClassVar[dict[str, Any]] = {"type": "object", "properties": {"tags": {"uniqueItems": True}}}


def test_a_model_goes_out_and_comes_back() -> None:
    model = Model(id="a", total="1.10")
    assert values.encode([model]) == b'[{"id":"a","total":"1.10"}]'
    assert values.decode(b'[{"id":"a","total":"1.10"}]', list[Model]) == [model]
    values.check(model, Model)
    values.check(None, Model | None)


def test_sets_in_a_model_are_sorted() -> None:
    # Numbers, since those have the same order in every process: in a set of two this is not the one that is wanted.
    assert (list({1, 8}), list({9, 10})) == ([8, 1], [9, 10])
    model = WithSets(
        tags={"c", "a", "b"}, mixed={9, 10}, nested={"more": [{1, 8}], "less": ({1, 8},)}, plain=["b", "a"]
    )
    assert values.encode(model) == (
        b'{"mixed":[10,9],"nested":{"less":[[1,8]],"more":[[1,8]]},"plain":["b","a"],"tags":["a","b","c"]}'
    )


def test_what_a_model_writes_otherwise_than_it_is_stays_as_written() -> None:
    class Computes(WithSets):
        def model_dump(self, *, mode: str, by_alias: bool) -> dict[str, Any]:
            found = super().model_dump(mode=mode, by_alias=by_alias)
            return found if mode == "python" else {**found, **written}

    written = {"by": {"x": 1, "y": 2}, "counts": [["x", 1]], "labels": "b,a", "pages": "21", "pair": [2, 1, 3]}
    raw = b'{"by":{"x":1,"y":2},"counts":[["x",1]],"labels":"b,a","pages":"21","pair":[2,1,3]}'
    model = Computes(by={"x": 1}, counts={"x": 1}, labels={"b", "a"}, pages=[2, 1], pair=(2, 1))
    assert values.encode(model) == raw
    assert values.encode(Computes()) == raw


def test_a_long_integer_in_a_model_is_a_string() -> None:
    assert values.encode(Model(big=2**60)) == b'{"big":"1152921504606846976"}'


def test_a_model_beside_a_long_integer_comes_back() -> None:
    found = values.decode(b'["1152921504606846976",{"id":"a"}]', tuple[int, Model])
    assert found == (2**60, Model(id="a"))


def test_a_refusal_names_the_field_inside_the_model() -> None:
    with pytest.raises(InvalidValue, match=r"^order\[0\]\.lines\[1\]\.sku: Input should be a valid string"):
        values.decode(b'[{"lines":"bad"}]', list[Model], "order")
    with pytest.raises(InvalidValue, match=r"^order\[0\]: a validator's own$"):
        values.decode(b'[{"lines":"worse"}]', list[Model], "order")


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
def test_a_number_that_json_does_not_have_is_refused_inside_a_model_too(number: float) -> None:
    for model, path in (
        (Model(id=None, total=number), r"\.total"),
        (Model(lines=[{"price": 1.0}, {"price": number}]), r"\.lines\[1\]\['price'\]"),
        (WithSets(tags={"a"}, total=number), r"\.total"),
    ):
        with pytest.raises(InvalidValue, match=rf"^order\[0\]{path}: JSON has no NaN and no infinity"):
            values.encode([model], "order")


def test_what_a_model_writes_instead_of_nan_is_its_own_affair() -> None:
    class Writes(Model):
        def model_dump(self, *, mode: str, by_alias: bool) -> dict[str, Any]:
            found = super().model_dump(mode=mode, by_alias=by_alias)
            return found if mode == "python" else {**found, "total": "unknown"}

    assert values.encode(Writes(total=float("nan"), note=None)) == b'{"note":null,"total":"unknown"}'


def test_a_model_that_cannot_be_written_is_named_with_its_path() -> None:
    class Fails(Model):
        def model_dump(self, *, mode: str, by_alias: bool) -> dict[str, Any]:
            raise ZeroDivisionError("a serializer's own")

    with pytest.raises(InvalidValue, match=r"^order\['a'\]: .*Fails cannot be written as JSON \(a serializer's own\)"):
        values.encode({"a": Fails()}, "order")
    with pytest.raises(InvalidValue, match=r"^order\.it: object cannot be written as JSON"):
        values.encode(Model(it=object()), "order")
