"""Who may take a partition anew after somebody else has taken it: only whom the group still has as a member (protocol 5)."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import structs

from ductor_stream.coordinator.ownership import RETRY_MAXIMUM_S, Owned, Ownership
from ductor_stream.ports import INBOUND, UNREAD, Taken
from ductor_stream.telemetry.metrics import Metrics


class Ports:
    """Store, log and clock of an owner: ``member`` is what the group says, ``takes`` counts takes by partition."""

    def __init__(self) -> None:
        self.member = True
        self.takes: list[int] = []
        self.at = 0.0
        self.asks = 0
        self.answers_after = 0.0
        self.tokens: dict[int, str] = {}
        self.found = Taken(0, "token", 1, (0, 0, 0), {}, [], 0, [], True, "", None, 0, 0)
        self.ids: dict[str, str] = {}
        self.read_from: dict[str, int] = {}

    def still_member(self) -> bool:
        self.asks += 1
        self.at += self.answers_after
        return self.member

    def take(self, partition: int, token: str) -> Taken:
        self.takes.append(partition)
        last, self.tokens[partition] = self.tokens.get(partition, ""), token
        return structs.replace(self.found, partition=partition, token=token, epoch=len(self.takes), last_token=last)

    def topic_ids(self) -> dict[str, str]:
        return self.ids

    def seek(self, partition: int, offsets: Mapping[str, int]) -> None:
        self.read_from = dict(offsets)

    def pause(self, partitions: Iterable[int]) -> None: ...
    def resume(self, partitions: Iterable[int]) -> None: ...
    def observe(self, now: int) -> None: ...

    def monotonic(self) -> float:
        return self.at


class Nobody:
    """Hears what becomes of partitions."""

    def taken(self, owned: Owned, found: Taken, recreated: list[str]) -> None: ...
    def releasing(self, partitions: frozenset[int]) -> None: ...
    def gone(self, partitions: frozenset[int]) -> None: ...


def owner_of(ports: Any, *partitions: int) -> Ownership:
    """An owner that has taken these."""
    numbers = itertools.count()
    ownership = Ownership((ports, ports, ports), INBOUND, Metrics(), Nobody(), lambda: f"token {next(numbers)}")
    ownership.assigned(frozenset(partitions))
    ownership.settle()
    ports.takes.clear()
    return ownership


def later(ports: Ports, ownership: Ownership) -> list[int]:
    """What is taken within the next ten seconds."""
    ports.takes.clear()
    ports.at += 10.0
    ownership.settle()
    return list(ports.takes)


def test_an_expelled_owner_that_was_fenced_takes_nothing_before_the_group_confirms_it() -> None:
    """Found by chaos: a client whose threads slept fought with the new owners for a minute, over all partitions."""
    ports = Ports()
    ownership = owner_of(ports, 0, 1)
    ports.member = False
    ownership.retake([0, 1], fenced=True)
    assert later(ports, ownership) == later(ports, ownership) == []
    ports.member = True
    assert later(ports, ownership) == [0, 1]
    assert set(ownership.owned) == {0, 1}


def test_a_group_that_does_not_answer_is_asked_again_after_the_pause_and_not_during_it() -> None:
    ports = Ports()
    ownership = owner_of(ports, 0)
    ports.member, ports.answers_after = False, 2.0
    ownership.retake([0], fenced=True)
    assert later(ports, ownership) == []
    ownership.settle()
    assert ports.asks == 1, "the wait for the answer was no pause"
    assert later(ports, ownership) == []
    assert ports.asks == 2


def test_hours_of_failing_takes_only_keep_the_pause_at_its_longest() -> None:
    ports = Ports()
    ownership = owner_of(ports, 0)
    ports.member = False
    ownership.retake([0], fenced=True)
    for _ in range(1_100):
        assert later(ports, ownership) == []
    due = ownership.next_due()
    assert due is not None
    assert due - ports.at == RETRY_MAXIMUM_S


def test_a_rollback_is_no_doubt_about_membership() -> None:
    """Kafka may be away while Postgres has lost an answer: the owner goes on."""
    ports = Ports()
    ownership = owner_of(ports, 0, 1)
    ports.member = False
    ownership.retake([0])
    ownership.retake([1], slowly=True)
    assert later(ports, ownership) == [0, 1]


def test_what_fails_again_before_anything_has_landed_is_taken_ever_more_rarely() -> None:
    """Each take sends all that is unconfirmed once more: a table that somebody locks must not fill the topics."""
    ports = Ports()
    ownership = owner_of(ports, 0)
    ownership.retake([0])
    assert ownership.next_due() == ports.at, "the first time at once"
    ownership.settle()
    waits = []
    for _ in range(3):
        ownership.retake([0])
        due = ownership.next_due()
        assert due is not None
        waits.append(round(due - ports.at, 3))
        assert later(ports, ownership) == [0]
    assert waits == [0.2, 0.4, 0.8]
    ownership.settled([0])
    ownership.retake([0])
    assert ownership.next_due() == ports.at, "something has landed meanwhile"


def test_an_owner_that_finds_another_where_it_was_asks_the_group_before_it_takes_the_rest() -> None:
    """It slept, and woke with a dead connection: the store was away, it was told, and not that it is fenced."""
    ports = Ports()
    ownership = owner_of(ports, 0, 1, 2)
    ports.member, ports.tokens = False, dict.fromkeys(range(3), "another's")
    ownership.retake([0, 1, 2])
    assert later(ports, ownership) == [0]
    assert later(ports, ownership) == []
    ports.member = True
    assert later(ports, ownership) == [1, 2]


def test_what_was_lost_meanwhile_is_forgotten() -> None:
    ports = Ports()
    ownership = owner_of(ports, 0, 1)
    ownership.retake([0, 1], fenced=True)
    ownership.lost(frozenset({0}))
    assert later(ports, ownership) == [1]


def test_a_topic_made_anew_is_read_from_its_beginning() -> None:
    """Found by chaos: from its first offset, and not as one never read, so that its own loss is told too."""
    ports = Ports()
    changed, same, new = INBOUND
    ports.found = structs.replace(ports.found, offsets=(7, 8, UNREAD), topic_ids={changed: "1", same: "2"})
    ports.ids = {changed: "another", same: "2", new: "3"}
    ownership = owner_of(ports, 0)
    assert ports.read_from == {changed: 0, same: 8, new: UNREAD}
    assert ownership.owned[0].topic_ids == ports.ids
