"""Identities: where a run is at home, and the key that a step hands to the outside world."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ductor_stream.engine.ids import Fence, idempotency_key, murmur2, partition_of
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
