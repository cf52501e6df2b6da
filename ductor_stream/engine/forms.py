"""What msgspec alone does not do with users' values: pydantic models, a fixed order, the path to a fault.

Used by ``values`` only. pydantic is recognised by its methods and never imported.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from decimal import Decimal
from typing import Any
from uuid import UUID

import msgspec

EXACT = 2**53
"""Integers up to this size are read without loss everywhere; beyond, they are strings on the wire."""


class ModelError(ValueError):
    """A pydantic model refused a value; ``path`` leads from the model to the field."""

    def __init__(self, message: str, path: str) -> None:
        super().__init__(message)
        self.path = path


# -- pydantic, without importing it ---------------------------------------------------------


def enc_hook(value: Any) -> Any:
    """The JSON form of what msgspec does not know: pydantic models and mappings. Raises TypeError for all else."""
    if hasattr(value, "model_dump"):
        dumped = value.model_dump(mode="json", by_alias=True)
        if has_sets(value.__class__):
            return _sets_sorted(value.model_dump(mode="python", by_alias=True), dumped)
        return dumped
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"no JSON form for {value.__class__.__qualname__}")


def dec_hook(type: Any, found: Any) -> Any:
    """A pydantic model from decoded JSON. Raises ModelError with the path inside the model."""
    try:
        # By way of JSON, so that a strict model takes a date from a string.
        return type.model_validate_json(_as_read.encode(found))
    except ValueError as error:
        listed = getattr(error, "errors", None)
        if listed is None:
            raise
        first = listed()[0]
        path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in first["loc"])
        raise ModelError(first["msg"], path) from error


@functools.lru_cache(maxsize=1024)
def has_sets(model: Any) -> bool:
    """Whether a pydantic model has sets. Asked once per class: nearly all have none, and are dumped once and not twice."""
    return "uniqueItems" in str(model.model_json_schema())


def _sets_sorted(value: Any, dumped: Any) -> Any:
    """The model's JSON form with the arrays that were sets in sorted order."""
    if isinstance(value, (set, frozenset)) and isinstance(dumped, list):
        return sorted(dumped, key=sorted_keys.encode)
    if isinstance(value, dict) and isinstance(dumped, dict) and len(value) == len(dumped):
        return {k: _sets_sorted(v, d) for v, (k, d) in zip(value.values(), dumped.items(), strict=True)}
    if isinstance(value, (list, tuple)) and isinstance(dumped, list) and len(value) == len(dumped):
        return [_sets_sorted(v, d) for v, d in zip(value, dumped, strict=True)]
    return dumped


sorted_keys = msgspec.json.Encoder(enc_hook=enc_hook, order="deterministic")
"""Fast and in order, but it raises TypeError for keys that are no strings and for sets of what has no order."""

as_it_is = msgspec.json.Encoder(enc_hook=enc_hook)
_as_read = msgspec.json.Encoder(decimal_format="number")
"""Takes keys and sets as they come: for what ``ordered`` has put in order."""


# -- the slow way: what msgspec alone cannot put in order -----------------------------------


def ordered(value: Any) -> Any:
    """A copy with sorted keys, sets as sorted lists and long integers as strings, all else as it was."""
    if isinstance(value, (str, bytes, float, Decimal, UUID)):
        return value
    if isinstance(value, int):
        return str(int(value)) if abs(value) > EXACT else value
    if isinstance(value, Mapping):
        return {k: ordered(v) for k, v in sorted(value.items(), key=lambda item: _key_text(item[0]))}
    if isinstance(value, (set, frozenset)):
        return sorted((ordered(member) for member in value), key=as_it_is.encode)
    if isinstance(value, (list, tuple)):
        return [ordered(member) for member in value]
    if fields := _fields(value):
        changed = copy.copy(value)
        for field in fields:
            # msgspec writes what is in the field, whatever its annotation; frozen classes allow it this way.
            _force(changed, field, ordered(getattr(value, field)))
        return changed
    return ordered(enc_hook(value)) if hasattr(value, "model_dump") else value


def _force(target: Any, field: str, value: Any) -> None:
    if isinstance(target, msgspec.Struct):
        msgspec.structs.force_setattr(target, field, value)
    else:
        object.__setattr__(target, field, value)


def _key_text(key: Any) -> str:
    return key if isinstance(key, str) else as_it_is.encode(key).decode()


def _fields(value: Any) -> tuple[str, ...]:
    """Names of the fields of a dataclass, Struct or attrs instance that it has; empty for all else."""
    if isinstance(value, msgspec.Struct):
        names: tuple[str, ...] = value.__struct_fields__
    elif dataclasses.is_dataclass(value):
        names = tuple(field.name for field in dataclasses.fields(value))
    else:
        names = tuple(field.name for field in getattr(value, "__attrs_attrs__", ()))
    return tuple(name for name in names if hasattr(value, name))


# -- what msgspec leaves to the class -------------------------------------------------------

_SCALARS = frozenset({str, int, float, bool, type(None)})
"""Classes with nothing below them: a list of 100,000 numbers is passed over in 3 ms instead of 140, in the owner's thread."""


def with_defaults(value: Any) -> Any:
    """The same value, with each default that stands in a dataclass's class alone put into the object too.

    msgspec leaves what JSON did not have to the class, and leaves it out again when it writes the object: a workflow
    that passes its input on would pass less than its code sees, and equal values would have two forms.
    """
    if isinstance(value, Mapping):
        parts: Iterable[Any] = value.values()
    elif isinstance(value, (list, tuple, set, frozenset)):
        parts = value
    elif fields := _fields(value):
        own = getattr(value, "__dict__", fields)
        parts = [getattr(value, field) for field in fields]
        for field, part in zip(fields, parts, strict=True):
            if field not in own:
                _force(value, field, part)
    else:
        return value
    for part in parts:
        if part.__class__ not in _SCALARS:
            with_defaults(part)
    return value


# -- saying what is wrong, and where --------------------------------------------------------


def is_not_finite(value: Any) -> bool:
    """Whether a value is NaN or an infinity."""
    return isinstance(value, float) and not math.isfinite(value)


def is_not_encodable(value: Any) -> bool:
    """Whether a value has no JSON form, by itself or by what is in it."""
    try:
        as_it_is.encode(value)
    except Exception:  # noqa: BLE001 - users' properties and model_dump may raise anything
        return True
    return False


def path_to(value: Any, wrong: Callable[[Any], bool]) -> tuple[str, Any] | None:
    """The path to the first value below (or at) ``value`` that is wrong while nothing in it is, and that value."""
    for step, child in _children(value):
        if (deeper := path_to(child, wrong)) is not None:
            return step + deeper[0], deeper[1]
    return ("", value) if wrong(value) else None


def _children(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        yield from ((f"[{key!r}]", child) for key, child in value.items())
    elif isinstance(value, (list, tuple, set, frozenset)):
        yield from ((f"[{place}]", child) for place, child in enumerate(value))
    elif fields := _fields(value):
        yield from ((f".{field}", getattr(value, field)) for field in fields)
    elif hasattr(value, "model_dump"):
        yield from _children_of_model(value)


def _children_of_model(model: Any) -> Iterator[tuple[str, Any]]:
    """What is in a model's JSON form: the model itself may hold what its serializers write otherwise."""
    try:
        dumped = enc_hook(model)
    except Exception:  # noqa: BLE001 - users' serializers may raise anything: then the model itself is at fault
        return
    if isinstance(dumped, Mapping):
        yield from ((f".{key}", child) for key, child in dumped.items())
    else:
        yield "", dumped
