"""What a declared type looks like from outside: its fields by the names that they have on the wire. Pure.

Rules name them in expressions, connectors in templates; both are refused at their declaration for a name that is not.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import inspect

Shape = inspect.Type
"""What msgspec says about a type."""

_OBJECTS = (inspect.StructType, inspect.DataclassType, inspect.TypedDictType, inspect.NamedTupleType)


class Field(msgspec.Struct, frozen=True):
    """One field of an object. ``required``: a value of the type cannot do without it."""

    name: str
    shape: Any
    required: bool


def shape_of(type: Any) -> Shape:
    """What msgspec knows of an annotation that may cross the wire."""
    return inspect.type_info(type)


def fields_of(shape: Any) -> dict[str, Field] | None:
    """The fields of an object type by their wire names, or None where it has none (a number, a list, a union)."""
    if isinstance(shape, _OBJECTS):
        return {each.encode_name: Field(each.encode_name, each.type, each.required) for each in shape.fields}
    if isinstance(shape, inspect.CustomType) and hasattr(shape.cls, "model_fields"):
        models = shape.cls.model_fields.items()
        return {
            known.alias or name: Field(known.alias or name, shape_of(known.annotation), known.is_required())
            for name, known in models
        }
    return None


def leaves_of(shape: Any) -> dict[str, Any]:
    """Every field that has no fields of its own, by its path (``customer.address.country``). A field that may be
    missing or null has no known fields: it is a leaf itself. Empty where the type is no object."""
    found: dict[str, Any] = {}
    _collect(shape, "", frozenset(), found)
    return found


def _collect(shape: Any, start: str, seen: frozenset[Any], found: dict[str, Any]) -> None:
    own = getattr(shape, "cls", shape)
    fields = fields_of(shape)
    if fields is None or own in seen:
        if start:
            found[start[:-1]] = shape
        return
    for field in fields.values():
        _collect(field.shape, f"{start}{field.name}.", seen | {own}, found)


def at(value: Any, path: str) -> Any:
    """What stands at a path of decoded JSON. Raises KeyError where it is not there."""
    for part in path.split("."):
        if not isinstance(value, dict):
            raise KeyError(path)
        value = value[part]
    return value
