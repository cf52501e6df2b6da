"""Deadlines of attempts that were heard of (protocol 22): by a clock that never jumps."""

from __future__ import annotations

import msgspec

from ductor_stream.coordinator.heartbeats import Heartbeats
from ductor_stream.engine.definition import StepOptions
from ductor_stream.ports import OpenAttempt

ROW = OpenAttempt(0, "r", 1, "1", 1, "token", 1_000, 1_000)


class Clock:
    """Stands still until it is told; ``now``, Postgres's clock, says nothing here."""

    seconds = 1.0

    def monotonic(self) -> float:
        return self.seconds


def test_an_attempt_that_had_a_row_before_it_beat_is_still_given_up() -> None:
    """R9: a SyncMatch attempt gets its row before its first heartbeat; its silence must be noticed all the same."""
    heartbeats = Heartbeats(clock := Clock())
    heartbeats.hear(ROW, None)
    assert heartbeats.next_in() is None
    clock.seconds = 2.0
    heartbeats.hear(ROW, StepOptions())
    assert heartbeats.next_in() == 10_000
    clock.seconds = 11.999
    assert heartbeats.due() == []
    clock.seconds = 12.0
    [(heard, code)] = heartbeats.due()
    assert (heard.open.node_id, code) == ("1", "worker_lost")


def test_the_next_try_of_a_local_attempt_is_given_up_too() -> None:
    heartbeats = Heartbeats(clock := Clock())
    heartbeats.hear(ROW, None)
    heartbeats.forget(("r", 1, "1"))
    clock.seconds = 5.0
    heartbeats.hear(msgspec.structs.replace(ROW, generation=2, token=None), StepOptions())
    clock.seconds = 15.0
    assert [code for _, code in heartbeats.due()] == ["worker_lost"]


def test_beats_put_the_deadline_off() -> None:
    heartbeats = Heartbeats(clock := Clock())
    for clock.seconds in range(1, 30):
        heartbeats.hear(ROW, StepOptions())
        assert heartbeats.due() == []
    clock.seconds = 30.0
    assert heartbeats.due() == []
    clock.seconds = 40.0
    assert len(heartbeats.due()) == 1


def test_start_to_close_counts_from_the_first_word_of_this_try() -> None:
    heartbeats = Heartbeats(clock := Clock())
    options = StepOptions(start_to_close_ms=15_000)
    heartbeats.hear(ROW, options)
    clock.seconds = 9.0
    heartbeats.hear(ROW, options)
    clock.seconds = 16.0
    assert [code for _, code in heartbeats.due()] == ["timeout_start_to_close"]
    heartbeats.hear(msgspec.structs.replace(ROW, generation=2), options)
    assert heartbeats.next_in() == 10_000


def test_another_time_in_postgres_gives_nobody_up() -> None:
    """Protocol 20: its clock went an hour forth, and back; the rows say so, the deadlines do not."""
    heartbeats = Heartbeats(clock := Clock())
    for jump in (3_600_000, 0, -3_600_000):
        clock.seconds += 1
        heartbeats.hear(msgspec.structs.replace(ROW, beat_at=1_000 + jump), StepOptions())
        assert heartbeats.due() == []
        assert heartbeats.next_in() is not None
