"""A partition is ours only while all three of its topics are."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ductor_stream.kafka.membership import Membership, Place
from ductor_stream.ports import INBOUND

PLACES = [(topic, partition) for topic in INBOUND for partition in range(4)]


def whole(partition: int) -> list[Place]:
    return [(topic, partition) for topic in INBOUND]


def test_a_partition_is_whole_when_the_last_of_its_topics_comes() -> None:
    membership = Membership()
    assert membership.give([("run-events", 1), ("wakeups", 1)]) == frozenset()
    assert membership.give([("attempt-results", 1), ("attempt-results", 2)]) == {1}
    assert membership.whole == {1}


def test_it_is_whole_no_longer_when_the_first_of_them_goes() -> None:
    membership = Membership()
    membership.give(whole(0) + whole(1))
    assert membership.take([("wakeups", 0)]) == {0}
    assert membership.take([("run-events", 0), ("attempt-results", 0)]) == frozenset()
    assert membership.whole == {1}


def test_a_half_comes_and_goes_unnoticed() -> None:
    membership = Membership()
    assert membership.give([("run-events", 5)]) == frozenset()
    assert membership.take([("run-events", 5)]) == frozenset()


@given(st.lists(st.tuples(st.booleans(), st.lists(st.sampled_from(PLACES)))))
def test_what_is_told_adds_up_to_what_is_held(changes: list[tuple[bool, list[Place]]]) -> None:
    membership, held, told = Membership(), set[Place](), set[int]()
    for given_, places in changes:
        if given_:
            fresh = membership.give(places)
            assert not fresh & told
            held, told = held | set(places), told | fresh
        else:
            gone = membership.take(places)
            assert gone <= told
            held, told = held - set(places), told - gone
        assert told == membership.whole == {p for p in range(4) if all((topic, p) in held for topic in INBOUND)}
        assert membership.held == held
