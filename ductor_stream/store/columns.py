"""Parameters of one fixed Postgres type: scalars, and columns (lists for ``unnest``), sent in binary.

The driver's own choice of type goes by value (int2 or int8 …, unknown for None), which would prepare
the same statement many times over, and it sends bytea as hex text, which costs three times as much.
Here the class fixes the type. Moments are int milliseconds since 1970 UTC on our side.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from itertools import repeat
from struct import Struct
from struct import error as StructError
from typing import Any, ClassVar

from psycopg import Connection
from psycopg.adapt import Dumper, Loader
from psycopg.pq import Format

from ductor_stream.errors import DataError

_HEAD = Struct(">iiIii")  # dimensions, has nulls, element type, length, lower bound
_EMPTY = Struct(">iiI")
_LENGTH = Struct(">i")
_INT2 = Struct(">h")
_INT4 = Struct(">i")
_INT8 = Struct(">q")
_SIZED_INT4 = Struct(">ii")
_SIZED_INT8 = Struct(">iq")
_NULL = b"\xff\xff\xff\xff"
_EPOCH_2000_MS = 946_684_800_000  # Postgres counts microseconds from 2000-01-01


def storable(text: str) -> bool:
    """Whether Postgres can hold this text: no U+0000, no lone surrogate."""
    return "\0" not in text and (text.isascii() or not any("\ud800" <= c <= "\udfff" for c in text))


class Parameter(ABC):
    """What is sent under ``oid``; subclasses know how."""

    __slots__ = ()
    oid: ClassVar[int]

    def encoded(self) -> bytes | None:
        """The binary form, None for null. Raises DataError for what the type cannot hold."""
        try:
            return self._encoded()
        except (StructError, UnicodeEncodeError, OverflowError) as error:
            raise DataError("not_storable", f"a value cannot be stored: {error}") from error

    @abstractmethod
    def _encoded(self) -> bytes | None:
        """The value in Postgres's binary format."""


# -- scalars --------------------------------------------------------------------------------


class Scalar(Parameter):
    """One value or None."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def _encoded(self) -> bytes | None:
        return None if self.value is None else self._packed()

    @abstractmethod
    def _packed(self) -> bytes:
        """The value in Postgres's binary format, when there is one."""


class Int2(Scalar):
    """One ``smallint``."""

    __slots__ = ()
    oid = 21

    def _packed(self) -> bytes:
        return _INT2.pack(self.value)


class Int4(Scalar):
    """One ``integer``."""

    __slots__ = ()
    oid = 23

    def _packed(self) -> bytes:
        return _INT4.pack(self.value)


class Int8(Scalar):
    """One ``bigint``."""

    __slots__ = ()
    oid = 20

    def _packed(self) -> bytes:
        return _INT8.pack(self.value)


class Text(Scalar):
    """One ``text``."""

    __slots__ = ()
    oid = 25

    def _packed(self) -> bytes:
        raw: bytes = self.value.encode()
        return raw


class Bytea(Scalar):
    """One ``bytea``."""

    __slots__ = ()
    oid = 17

    def _packed(self) -> bytes:
        raw: bytes = self.value
        return raw


class Moment(Scalar):
    """One ``timestamptz``."""

    __slots__ = ()
    oid = 1184

    def _packed(self) -> bytes:
        return _INT8.pack((self.value - _EPOCH_2000_MS) * 1000)


# -- columns --------------------------------------------------------------------------------


class Column(Parameter):
    """A list of values; ``scalar`` is the class of one of them."""

    __slots__ = ("values",)
    scalar: ClassVar[type[Scalar]]

    def __init__(self, values: Sequence[Any]) -> None:
        self.values = values

    @abstractmethod
    def _parts(self) -> Iterable[bytes]:
        """Each value behind its length, as Postgres receives an array."""

    def _encoded(self) -> bytes:
        if not self.values:
            return _EMPTY.pack(0, 0, self.scalar.oid)
        return _HEAD.pack(1, 1, self.scalar.oid, len(self.values), 1) + b"".join(self._parts())


class Int4s(Column):
    """``integer[]`` without nulls."""

    __slots__ = ()
    oid, scalar = 1007, Int4

    def _parts(self) -> Iterable[bytes]:
        return map(_SIZED_INT4.pack, repeat(4), self.values)


class Int8s(Column):
    """``bigint[]`` without nulls."""

    __slots__ = ()
    oid, scalar = 1016, Int8

    def _parts(self) -> Iterable[bytes]:
        return map(_SIZED_INT8.pack, repeat(8), self.values)


class Texts(Column):
    """``text[]``."""

    __slots__ = ()
    oid, scalar = 1009, Text

    def _parts(self) -> Iterable[bytes]:
        for value in self.values:
            if value is None:
                yield _NULL
            else:
                raw = value.encode()
                yield _LENGTH.pack(len(raw)) + raw


class Byteas(Column):
    """``bytea[]``."""

    __slots__ = ()
    oid, scalar = 1001, Bytea

    def _parts(self) -> Iterable[bytes]:
        for value in self.values:
            yield _NULL if value is None else _LENGTH.pack(len(value)) + value


class Moments(Column):
    """``timestamptz[]``."""

    __slots__ = ()
    oid, scalar = 1185, Moment

    def _parts(self) -> Iterable[bytes]:
        for value in self.values:
            yield _NULL if value is None else _SIZED_INT8.pack(8, (value - _EPOCH_2000_MS) * 1000)


# -- the driver -----------------------------------------------------------------------------


class _ParameterDumper(Dumper):
    format = Format.BINARY

    def dump(self, obj: Parameter) -> bytes | None:
        return obj.encoded()


class _MomentLoader(Loader):
    format = Format.BINARY

    def load(self, data: Any) -> int:
        microseconds: int = _INT8.unpack(data)[0]
        return microseconds // 1000 + _EPOCH_2000_MS


_DUMPERS = {
    kind: type(f"{kind.__name__}Dumper", (_ParameterDumper,), {"oid": kind.oid})
    for kind in (Int2, Int4, Int8, Text, Bytea, Moment, Int4s, Int8s, Texts, Byteas, Moments)
}


def register(connection: Connection[Any]) -> None:
    """Teach a connection these parameters; a ``timestamptz`` comes back as int milliseconds."""
    for kind, dumper in _DUMPERS.items():
        connection.adapters.register_dumper(kind, dumper)
    connection.adapters.register_loader("timestamptz", _MomentLoader)
