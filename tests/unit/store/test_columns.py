"""The binary forms of parameters, against what Postgres documents; integration tests send them to the real one."""

from __future__ import annotations

import struct

import pytest

from ductor_stream.errors import DataError
from ductor_stream.store.columns import (
    Byteas,
    Int2,
    Int4,
    Int4s,
    Int8,
    Int8s,
    Moment,
    Moments,
    Parameter,
    Text,
    Texts,
    storable,
)


def header(element: int, length: int) -> bytes:
    return struct.pack(">iiIii", 1, 1, element, length, 1)


def test_arrays() -> None:
    assert Int4s([1, -1]).encoded() == header(23, 2) + struct.pack(">iiii", 4, 1, 4, -1)
    assert Int8s([2**40]).encoded() == header(20, 1) + struct.pack(">iq", 8, 2**40)
    assert Texts(["ä", None]).encoded() == header(25, 2) + b"\0\0\0\2\xc3\xa4" + b"\xff\xff\xff\xff"
    assert Byteas([b"", None]).encoded() == header(17, 2) + b"\0\0\0\0" + b"\xff\xff\xff\xff"
    assert Texts([]).encoded() == struct.pack(">iiI", 0, 0, 25)


def test_moments_count_from_2000() -> None:
    assert Moment(946_684_800_000).encoded() == struct.pack(">q", 0)
    assert Moment(946_684_800_001).encoded() == struct.pack(">q", 1000)
    assert Moments([None, 0]).encoded() == header(1184, 2) + b"\xff\xff\xff\xff" + struct.pack(
        ">iq", 8, -946_684_800_000_000
    )


def test_none_is_null() -> None:
    assert [kind(None).encoded() for kind in (Int4, Int8, Text, Moment)] == [None] * 4


@pytest.mark.parametrize(
    "bad",
    [
        Int2(2**15),
        Int4(2**31),
        Int8(2**63),
        Int4s([1, 2**31]),
        Int8s([None]),
        Moment(2**62),
        Moments([10**18]),
        Text("\ud800"),
        Texts(["ok", "\udfff"]),
    ],
    ids=lambda bad: type(bad).__name__,
)
def test_what_a_type_cannot_hold(bad: Parameter) -> None:
    with pytest.raises(DataError) as caught:
        bad.encoded()
    assert caught.value.reason == "not_storable"


def test_storable() -> None:
    assert all(map(storable, ["", "order-42", "ä€😀"]))
    assert not any(map(storable, ["\0", "a\0b", "\ud800", "ä\udfff"]))
