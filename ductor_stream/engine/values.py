"""How users' values cross the wire: JSON, the same bytes for the same value on every machine (R2).

Dataclasses, ``msgspec.Struct``, TypedDict, NamedTuple, attrs, enums, datetimes (RFC 3339), ``Decimal`` and
``UUID`` (strings), ``bytes`` (base64), unions; pydantic models by their own JSON form, where the user has
pydantic (it is never imported here). What JSON leaves open is fixed so:

* keys of objects are sorted, and a set is a sorted array: hash order differs between two processes, and a
  replay must give the bytes that were recorded;
* an integer beyond 2**53 is a string, which other languages can read without loss; it is accepted in both forms;
* NaN and infinities are refused: they would arrive as null.
"""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any

import msgspec

from ductor_stream.engine import forms
from ductor_stream.engine.nesting import too_deep
from ductor_stream.errors import InvalidValue, PayloadTooLarge

# A whole number token of msgspec's compact output, long enough to be beyond 2**53 (sixteen digits).
_LONG_NUMBER = re.compile(rb"(?:^|[:,\[])-?\d{16,}(?:$|[,\]}])")
_LONG_TEXT = re.compile(rb'"-?\d{16,}"')
# The pattern takes 25 ns a byte, and hardly any value has sixteen digits in a row: that is found out at 2 ns.
_DIGITS = bytes(ord("0") if chr(c).isdecimal() else ord(" ") for c in range(128)) + b" " * 128
_SIXTEEN = b"0" * 16
_any = msgspec.json.Decoder()
_exact = msgspec.json.Decoder(float_hook=Decimal)


def encode(value: Any, name: str = "value") -> bytes:
    """JSON of a value; the same value always gives the same bytes. ``name`` stands first in the path of an error.

    Raises InvalidValue with the path to what cannot be written, and its type.
    """
    try:
        raw = _encoded(value)
    except Exception as error:
        raise InvalidValue(name + _why_not_encodable(value, error)) from error
    if b"null" in raw and (found := forms.path_to(value, forms.is_not_finite)) is not None:
        raise InvalidValue(f"{name}{found[0]}: JSON has no NaN and no infinity; pass None or a string")
    return raw


def _encoded(value: Any) -> bytes:
    try:
        raw = forms.sorted_keys.encode(value)
    except TypeError:
        # Keys that are no strings, or a set whose members have no order: not a fault yet.
        return forms.as_it_is.encode(forms.ordered(value))
    if len(raw) > 15 and _SIXTEEN in raw.translate(_DIGITS) and _LONG_NUMBER.search(raw):
        return forms.as_it_is.encode(forms.ordered(value))
    return raw


MAX_VALUE_BYTES = 900_000
MAX_VALUE_NESTING = 200
"""Limits of one value on the wire (docs/wire.md)."""


def limited(raw: bytes, name: str) -> bytes:
    """The same JSON, if it fits on the wire. Raises PayloadTooLarge, and InvalidValue when it is nested too deeply."""
    if len(raw) > MAX_VALUE_BYTES:
        raise PayloadTooLarge(
            f"{name} has {len(raw):,} bytes, {MAX_VALUE_BYTES:,} are the limit: pass a reference to it"
        )
    if too_deep(raw, MAX_VALUE_NESTING):
        raise InvalidValue(f"{name} is nested more than {MAX_VALUE_NESTING} levels deep")
    return raw


def decode(raw: bytes, type: Any, name: str = "value") -> Any:
    """The value that JSON bytes hold, as ``type``. ``name`` stands first in the path of an error.

    Raises InvalidValue with the path to the field that does not fit.
    """
    reader = _reader_for(type)
    value = _decoded(reader.decoder, raw, type, name)
    return forms.with_defaults(value) if reader.has_defaults else value


def _decoded(decoder: msgspec.json.Decoder[Any], raw: bytes, type: Any, name: str) -> Any:
    try:
        return decoder.decode(raw)
    except msgspec.ValidationError as error:
        if _LONG_TEXT.search(raw):
            # Perhaps only an integer beyond 2**53, which stands as a string.
            with contextlib.suppress(msgspec.ValidationError):
                return _with_long_integers(raw, type)
        raise InvalidValue(_located(error, name)) from error
    except Exception as error:
        raise InvalidValue(f"{name}: {_said(error)}") from error


def _with_long_integers(raw: bytes, type: Any) -> Any:
    """The value, with integers from strings of so many digits, and nothing else from a string. Raises ValidationError."""
    info = msgspec.inspect.type_info(type)
    # Numbers as they are written, for those of them that are Decimals; where anything is taken they are floats.
    is_exact = _first(info, _decimal) is not None and _first(info, _anything) is None
    tree = _exact.decode(raw) if is_exact else _any.decode(raw)
    value = msgspec.convert(tree, type, strict=False, dec_hook=forms.dec_hook)
    if _loosened(_any.decode(raw), _any.decode(_encoded(value))):
        raise msgspec.ValidationError("a text stands for what is none")
    return value


def _decimal(info: Any) -> str | None:
    return "is one" if isinstance(info, msgspec.inspect.DecimalType) else None


def _anything(info: Any) -> str | None:
    return "is one" if isinstance(info, msgspec.inspect.AnyType) else None


def _loosened(before: Any, after: Any) -> bool:
    """Whether a text other than a long number, or a number, was taken for what it is not. Of what was left out nothing is known."""
    if isinstance(before, dict) and isinstance(after, dict):
        return any(_loosened(value, after[key]) for key, value in before.items() if key in after)
    if isinstance(before, list) and isinstance(after, list):
        return any(map(_loosened, before, after))
    if isinstance(before, str) and not isinstance(after, str | list | dict):
        return _LONG_TEXT.fullmatch(b'"%s"' % before.encode()) is None
    return isinstance(after, bool) and not isinstance(before, bool)


def check(value: Any, type: Any, name: str = "value") -> None:
    """Raise InvalidValue with the path, unless the value can be written and read back as ``type``."""
    if value.__class__ is type and type in (int, bool):
        return
    decode(encode(value, name), type, name)


class _Reader(msgspec.Struct, frozen=True):
    """How a type is read; ``has_defaults``: whether a dataclass in it may leave some to its class."""

    decoder: msgspec.json.Decoder[Any]
    has_defaults: bool


def decoder_for(type: Any) -> msgspec.json.Decoder[Any]:
    """The decoder of a type, built once.

    Raises InvalidValue for an annotation that cannot cross the wire (a connection, a file, a plain class).
    """
    return _reader_for(type).decoder


def _reader_for(type: Any) -> _Reader:
    try:
        return _cached_reader(type)
    except TypeError:
        # An annotation with unhashable metadata; everything else that is wrong is an InvalidValue already.
        return _build_reader(type)


def _build_reader(type: Any) -> _Reader:
    try:
        info = msgspec.inspect.type_info(type)
        fault = _first(info, _fault)
        if fault is not None:
            raise InvalidValue(fault)
        return _Reader(msgspec.json.Decoder(type, dec_hook=forms.dec_hook), _first(info, _default) is not None)
    except (TypeError, ValueError, NameError) as error:
        raise InvalidValue(f"{_named(type)} cannot cross the wire: {_said(error)}") from error


_cached_reader: Callable[[Any], _Reader] = functools.lru_cache(maxsize=1024)(_build_reader)


_SETS = (msgspec.inspect.SetType, msgspec.inspect.FrozenSetType)


def _first(found: Any, look: Callable[[Any], str | None], seen: frozenset[int] = frozenset()) -> str | None:
    """What ``look`` says first of a type or of one below it."""
    if (said := look(found)) is not None:
        return said
    if id(found) in seen:
        return None
    if isinstance(found, (list, tuple)):
        parts: Iterator[Any] = iter(found)
    elif isinstance(found, (msgspec.inspect.Type, msgspec.inspect.Field)):
        parts = (getattr(found, field) for field in found.__struct_fields__)
    else:
        return None
    below = seen | {id(found)}
    return next((said for part in parts if (said := _first(part, look, below)) is not None), None)


def _fault(found: Any) -> str | None:
    """What is wrong with a type: a class that nobody here can read, a set without an order."""
    if isinstance(found, msgspec.inspect.CustomType) and not hasattr(found.cls, "model_validate"):
        named = found.cls.__qualname__
        return f"{named} cannot cross the wire: use a dataclass, a msgspec.Struct or a plain type"
    if isinstance(found, _SETS) and isinstance(found.item_type, _SETS):
        return "a set of sets cannot cross the wire in a fixed order: use a list of sets"
    return None


def _default(found: Any) -> str | None:
    """A field with a default of a class whose objects may leave it to the class."""
    if isinstance(found, msgspec.inspect.DataclassType):
        return next((each.name for each in found.fields if each.default is not msgspec.NODEFAULT), None)
    return None


def _why_not_encodable(value: Any, error: Exception) -> str:
    if isinstance(error, RecursionError):
        return f": {_named(value.__class__)} is nested too deeply, or contains itself"
    path, culprit = forms.path_to(value, forms.is_not_encodable) or ("", value)
    return f"{path}: {_named(culprit.__class__)} cannot be written as JSON ({_said(error)})"


def _located(error: msgspec.ValidationError, name: str) -> str:
    text, _, where = str(error).rpartition(" - at `")
    if not text:
        text, where = where, "$`"
    where = where.rstrip("`").replace("key` in `$", "a key of $").replace("$", name, 1)
    inner = error.__cause__.path if isinstance(error.__cause__, forms.ModelError) else ""
    return f"{where}{inner}: {text}"


def _said(error: Exception) -> str:
    return str(error) or error.__class__.__name__


def _named(type: Any) -> str:
    return getattr(type, "__qualname__", None) or str(type)
