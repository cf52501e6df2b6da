"""Identities: where a run is at home, and the key that a step hands to the outside world."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ductor_stream.engine.ids import (
    MAX_RUN_ID_BYTES,
    Fence,
    checked,
    child_id,
    idempotency_key,
    is_next_id,
    murmur2,
    next_id,
    partition_of,
)
from ductor_stream.errors import InvalidValue
from unit.engine.programs import examples

# What Kafka's own Java client (4.3.1, Utils.murmur2) says; the first six are the cases of its unit test.
JAVA: dict[bytes, int] = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
    b"": 275646681,
    b"a": -1563381124,
    b"ab": 316155434,
    b"abcd": -1323649548,
    "Bestellung-äöü".encode(): -622322710,
    "注文-42".encode(): -787707910,
    "😀".encode(): 131881617,
    "ÿ".encode(): 1511439487,
    b"order-42": 501153024,
    b"order-42/1/3": -1390399881,
    b"run-1": 637533037,
    b"run-2": 1268900777,
    b"hello": 2132663229,
    bytes(range(256)): -1948347274,
    bytes(range(255, 0, -1)): -788971837,
}

# Seen on a real broker with 12 partitions: the Java client, franz-go, kafkajs and aiokafka all agree.
OF_TWELVE = {
    b"run-1": 1,
    b"run-2": 5,
    b"hello": 9,
    b"": 9,
    b"order-42": 0,
    b"order-42/1/3": 11,
    "Bestellung-äöü".encode(): 10,
    "注文-42".encode(): 10,
    "😀".encode(): 9,
}


@pytest.mark.parametrize("key", list(JAVA))
def test_murmur2_is_that_of_kafkas_java_client(key: bytes) -> None:
    assert murmur2(key) == JAVA[key] & 0xFFFFFFFF


@pytest.mark.parametrize("key", list(OF_TWELVE))
def test_keys_go_where_other_clients_put_them(key: bytes) -> None:
    """R12: a negative hash is made positive by dropping its sign bit, not by negating it."""
    assert partition_of(key, 12) == OF_TWELVE[key]


@examples(200)
@given(st.binary(max_size=64), st.integers(1, 1_000))
def test_every_key_has_a_home(key: bytes, partitions: int) -> None:
    assert 0 <= partition_of(key, partitions) < partitions
    assert 0 <= murmur2(key) < 2**32


# -- idempotency keys -------------------------------------------------------------------------


def test_the_key_is_readable_where_nothing_has_to_be_escaped() -> None:
    assert idempotency_key("shop", "order-42", 1, "3") == "shop/order-42/1/3"
    assert idempotency_key("shop", "Bestellung-ä", 2, "3.1") == "shop/Bestellung-ä/2/3.1"


def test_parts_are_escaped() -> None:
    assert idempotency_key("shop", "a/b", 1, "3") == "shop/a%2Fb/1/3"
    assert idempotency_key("shop", "a%2Fb", 1, "3") == "shop/a%252Fb/1/3"
    assert idempotency_key("shop", "100%", 1, "t1") == "shop/100%25/1/t1"


parts = st.text(alphabet="ab/%2F15.", min_size=1, max_size=6)
identities = st.tuples(parts, parts, st.integers(1, 3), parts)


@examples(200)
@given(identities, identities)
def test_two_nodes_never_share_a_key(one: tuple[str, str, int, str], other: tuple[str, str, int, str]) -> None:
    """R7: else one's charge would be taken for the other's."""
    assert (idempotency_key(*one) == idempotency_key(*other)) == (one == other)


def test_the_fence_tells_apart_what_the_key_does_not() -> None:
    """Every try of a node has the same key, and a fence of its own."""
    first, second = Fence("r", 1, "3", 1), Fence("r", 1, "3", 2)
    assert first != second
    assert idempotency_key("shop", first.run_id, first.execution, first.node_id) == idempotency_key(
        "shop", second.run_id, second.execution, second.node_id
    )


def test_ids_of_children_say_where_they_come_from() -> None:
    assert child_id("order-42", 1, "3.1") == "order-42/1/3.1"
    assert next_id("order-42/1/3.1", 2) == "order-42/1/3.1/~2"
    assert next_id("invoice", 12) == "invoice/~12"


@pytest.mark.parametrize(("length", "told"), [(MAX_RUN_ID_BYTES - 4, True), (MAX_RUN_ID_BYTES - 3, False)])
def test_an_id_that_would_be_too_long_tells_those_above_it_by_a_digest(length: int, told: bool) -> None:
    run_id = "ä" * (length // 2) + "r" * (length % 2)
    found = child_id(run_id, 1, "3")
    assert (found == f"{run_id}/1/3") == told
    assert found.endswith("/1/3") and len(found.encode()) <= MAX_RUN_ID_BYTES
    assert told or (len(found), found) == (68, child_id(run_id, 1, "3"))
    assert child_id(run_id[1:] + "x", 1, "3") != found


@examples(200)
@given(
    st.lists(st.one_of(st.integers(1, 3), st.tuples(st.integers(1, 3), st.sampled_from(["1", "2", "3"]))), max_size=4)
)
def test_no_child_that_begins_anew_has_the_id_of_another_ones_child(path: list[int | tuple[int, str]]) -> None:
    """The way that an id is made can be read from it: two ways never meet."""
    found = "r"
    for step in path:
        found = next_id(found, step) if isinstance(step, int) else child_id(found, *step)
    read: list[int | tuple[int, str]] = []
    parts = iter(found.split("/")[1:])
    for part in parts:
        read.append(int(part[1:]) if part.startswith("~") else (int(part), next(parts)))
    assert read == path


def test_what_is_no_next_id_is_told_apart() -> None:
    assert is_next_id("r/1/2/~13", "r/1/2")
    assert not any(is_next_id(found, "r/1/2") for found in ("r/1/2", "r/1/2/13", "r/1/2/~", "r/1/2/~x", "r/1/3/~13"))


def test_a_text_that_can_be_no_key_is_refused_by_its_name() -> None:
    assert checked("ä" * 3, "run id", 6) == "äää"
    with pytest.raises(InvalidValue, match=r"^run id has 7 bytes: use 1 to 6 of UTF-8, without U\+0000$"):
        checked("äää.", "run id", 6)
    for text in ("", "a\0b"):
        with pytest.raises(InvalidValue, match="^run id has "):
            checked(text, "run id", 6)
    for text in ("\ud800", 7):
        with pytest.raises(InvalidValue, match="^run id is .*: it has to be a text of valid characters$"):
            checked(text, "run id", 6)  # type: ignore[arg-type]
