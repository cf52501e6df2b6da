"""From the types that users declare to CEL's. Pure."""

from __future__ import annotations

import re
from typing import Any

from msgspec import inspect

_WORDS = frozenset(["bool", "bytes", "double", "dyn", "int", "list", "map", "null_type", "string", "type", "uint"])
"""Names that CEL has for itself: a field of that name is ``facts.type``."""

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*")

_PLAIN: dict[type[Any], str] = {
    inspect.BoolType: "BOOL",
    inspect.IntType: "INT",
    inspect.FloatType: "DOUBLE",
    inspect.StrType: "STRING",
    inspect.BytesType: "BYTES",
    inspect.ByteArrayType: "BYTES",
    inspect.DateTimeType: "TIMESTAMP",
    inspect.TimeDeltaType: "DURATION",
    inspect.DateType: "STRING",
    inspect.TimeType: "STRING",
    inspect.UUIDType: "STRING",
    inspect.DecimalType: "STRING",
}
_LISTS = (inspect.ListType, inspect.SetType, inspect.FrozenSetType, inspect.VarTupleType)
_OBJECTS = (inspect.StructType, inspect.DataclassType, inspect.TypedDictType)
_LOOSE = {"DECIMAL", "DYN"}


def check_name(path: str) -> bool:
    """Whether a field can be named in CEL at all."""
    return _NAME.fullmatch(path) is not None


def facts_name(path: str) -> str:
    """The name that a field has in expressions: its path, behind ``facts.`` where CEL has that name for itself."""
    return f"facts.{path}" if path.partition(".")[0] in _WORDS else path


def plain_type(shape: Any) -> str:
    """The name of the CEL type of a scalar, ``DYN`` for all else."""
    shape = shape.type if isinstance(shape, inspect.Metadata) else shape
    if isinstance(shape, inspect.EnumType):
        return _common([member.value for member in shape.cls])
    if isinstance(shape, inspect.LiteralType):
        return _common(list(shape.values))
    return _PLAIN.get(type(shape), "DYN")


def cel_type(types: Any, shape: Any) -> Any:
    """The CEL type (``types`` is the library's class) of what msgspec knows of a type."""
    shape = shape.type if isinstance(shape, inspect.Metadata) else shape
    if isinstance(shape, _LISTS):
        return types.List(cel_type(types, shape.item_type))
    if isinstance(shape, (inspect.TupleType, inspect.NamedTupleType)):
        return types.List(types.DYN)
    if isinstance(shape, inspect.DictType):
        return types.Map(types.STRING, cel_type(types, shape.value_type))
    if isinstance(shape, _OBJECTS):
        return types.Map(types.STRING, types.DYN)
    return getattr(types, plain_type(shape))


def fits(wanted: Any, found: str) -> bool:
    """Whether a value of the CEL type ``found`` can become one of the declared type; True where only the value tells."""
    expected = "DECIMAL" if isinstance(wanted, inspect.DecimalType) else plain_type(wanted)
    if expected in _LOOSE or found == "DYN":
        return True
    # JSON has one kind of number; dates and ids are written as strings.
    return found == expected or (expected, found) in (("DOUBLE", "INT"), ("TIMESTAMP", "STRING"))


def _common(members: list[Any]) -> str:
    if all(isinstance(member, str) for member in members):
        return "STRING"
    whole = all(isinstance(member, int) and not isinstance(member, bool) for member in members)
    return "INT" if whole else "DYN"
