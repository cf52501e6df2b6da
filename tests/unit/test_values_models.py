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
        return {key: list(value) if isinstance(value, set) else value for key, value in self.fields.items()}

    @classmethod
    def model_validate(cls, found: Any) -> Self:
        raise AssertionError("a strict model would refuse a date as a string this way")

    @classmethod
    def model_validate_json(cls, raw: bytes) -> Self:
        fields = msgspec.json.decode(raw)
        if fields.get("lines") == "bad":
            raise Refused("1 validation error")
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
    model = WithSets(tags={"c", "a", "b"}, nested={"more": [{"z", "y"}]}, plain=["b", "a"])
    raw = values.encode(model)
    assert b'"tags":["a","b","c"]' in raw
    assert b'"plain":["b","a"]' in raw


def test_a_long_integer_in_a_model_is_a_string() -> None:
    assert values.encode(Model(big=2**60)) == b'{"big":"1152921504606846976"}'


def test_a_refusal_names_the_field_inside_the_model() -> None:
    with pytest.raises(InvalidValue, match=r"^order\[0\]\.lines\[1\]\.sku: Input should be a valid string"):
        values.decode(b'[{"lines":"bad"}]', list[Model], "order")
