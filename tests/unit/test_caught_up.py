"""What is given up by the clock waits until the log has been read as far as it went at that moment (protocol 21)."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from ductor_stream.coordinator.caught_up import CaughtUp
from ductor_stream.coordinator.deadlines import _due_at
from ductor_stream.coordinator.ownership import Owned
from ductor_stream.engine.events import AttemptTimedOut
from ductor_stream.errors import LogUnavailable
from ductor_stream.ports import UNREAD


class World:
    """A log with an end, an owner with a position, and a clock: all as the test says."""

    def __init__(self) -> None:
        self.time = 1_000
        self.ends = {3: 10, 4: 10}
        self.eof = UNREAD
        self.asked: list[int] = []
        self.away = False
        self.takes_ms = 0
        self.owned = Owned(3, "t", 1, (0, 0, 0), [0, 0, 0], 0, 0, {})
        self.caught_up = CaughtUp(self, self)  # type: ignore[arg-type]

    def now(self) -> int:
        return self.time

    def healthy(self) -> bool:
        return True

    def reached_end(self, partition: int, topic: str) -> int:
        return self.eof

    def end_offsets(self, partition: int) -> dict[str, int]:
        self.asked.append(partition)
        if self.away:
            raise LogUnavailable("away")
        self.time += self.takes_ms
        return dict.fromkeys(("run-events", "attempt-results", "wakeups"), self.ends[partition])

    def since(self, at: int, read: int) -> bool:
        """In a new turn, with results read that far: whether those of that moment have been."""
        self.owned.offsets[1] = read
        self.caught_up.begin()
        return self.caught_up.since(at, self.owned, "attempt-results")


@pytest.fixture
def world() -> World:
    return World()


def test_what_was_there_has_to_be_read(world: World) -> None:
    assert not world.since(1_000, read=9)
    world.ends[3] = 20  # what comes later is not waited for
    world.time += 50
    assert world.since(1_000, read=10)
    assert world.since(1_000, read=10)
    assert world.asked == [3]


def test_what_is_due_later_waits_for_what_came_until_then(world: World) -> None:
    assert world.since(1_000, read=10)
    world.time, world.ends[3] = 2_000, 15
    assert not world.since(1_500, read=10)
    assert world.since(1_500, read=15)
    assert world.since(2_000, read=15), "it was asked at two thousand"


def test_under_a_flow_that_is_never_caught_up_with_it_passes(world: World) -> None:
    """The end runs ahead of the reader for ever: an end asked anew in each turn would never be reached."""
    due, passed = 1_000, 0
    for turn in range(50):
        world.time += 10
        world.ends[3] = 10 + 7 * (turn + 1)
        if world.since(due, read=7 * turn):
            due, passed = world.time, passed + 1
    assert passed >= 10


def test_the_end_of_a_log_with_markers_is_told_by_the_client(world: World) -> None:
    assert not world.since(1_000, read=8)
    world.eof = 10  # the last two are markers of transactions
    assert world.since(1_000, read=8)


def test_while_kafka_is_away_nothing_passes_and_it_is_asked_once_a_turn(world: World) -> None:
    world.away = True
    assert not world.since(1_000, read=10)
    assert not world.caught_up.since(900, world.owned, "run-events")
    assert world.asked == [3]
    world.away = False
    assert world.since(1_000, read=10)


def test_a_clock_that_is_stepped_back_makes_no_moment_pass_before_it_comes(world: World) -> None:
    world.time = 9_000
    assert world.since(9_000, read=10)
    world.time, world.ends[3] = 2_000, 30
    assert not world.since(2_000, read=10), "it was reached by a clock that has been corrected"
    world.time = 1_500
    world.ends[3] = 40
    assert not world.since(1_500, read=30), "so was the mark"
    assert world.since(1_500, read=40)


def test_another_owner_begins_anew(world: World) -> None:
    """The topic may have been made anew: its end is another one."""
    assert not world.since(1_000, read=5)
    world.caught_up.forget([3])
    world.ends[3] = 2
    assert world.since(1_000, read=2)
    world.caught_up.forget([3])
    world.ends[3] = 4
    assert not world.since(1_000, read=2)


def test_an_end_is_that_of_the_moment_before_the_question(world: World) -> None:
    """It takes three seconds: what came meanwhile is not in the answer, also not in that for another topic."""
    world.takes_ms = 3_000
    world.owned.offsets[0] = 10
    world.caught_up.begin()
    assert world.caught_up.since(1_000, world.owned, "run-events")
    world.owned.offsets[1] = 10
    assert world.caught_up.since(1_000, world.owned, "attempt-results")
    assert not world.caught_up.since(3_500, world.owned, "attempt-results"), "not asked since"
    assert world.asked == [3]
    assert world.since(3_500, read=10)
    assert world.asked == [3, 3]


@pytest.mark.parametrize(
    ("code", "due_at"), [("timeout_schedule_to_close", 60_100), ("timeout_schedule_to_start", 1_200)]
)
def test_a_time_out_waits_from_when_it_was_due_itself(code: str, due_at: int) -> None:
    """An attempt that began in time has passed its schedule-to-start long before: that moment says nothing any more."""
    options = SimpleNamespace(schedule_to_close_ms=60_000, schedule_to_start_ms=1_000)
    node = SimpleNamespace(created_at=100, dispatched_at=200, options=options)
    assert _due_at(node, AttemptTimedOut(1, "1", 1, code)) == due_at  # type: ignore[arg-type]
