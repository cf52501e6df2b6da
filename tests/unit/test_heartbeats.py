"""Deadlines of attempts that were heard of (protocol 22)."""

from __future__ import annotations

import msgspec

from ductor_stream.coordinator.heartbeats import Heartbeats
from ductor_stream.engine.definition import StepOptions
from ductor_stream.ports import OpenAttempt

ROW = OpenAttempt(0, "r", 1, "1", 1, "token", 1_000, 1_000)


def test_an_attempt_that_had_a_row_before_it_beat_is_still_given_up() -> None:
    """R9: a SyncMatch attempt gets its row before its first heartbeat; its silence must be noticed all the same."""
    heartbeats = Heartbeats()
    heartbeats.hear(ROW, None)
    assert heartbeats.next_at() is None
    heartbeats.hear(msgspec.structs.replace(ROW, beat_at=2_000), StepOptions())
    assert heartbeats.due(11_999) == []
    [(heard, code)] = heartbeats.due(12_000)
    assert (heard.open.node_id, code) == ("1", "worker_lost")


def test_the_next_try_of_a_local_attempt_is_given_up_too() -> None:
    heartbeats = Heartbeats()
    heartbeats.hear(ROW, None)
    heartbeats.forget(("r", 1, "1"))
    heartbeats.hear(
        msgspec.structs.replace(ROW, generation=2, token=None, heard_at=5_000, beat_at=5_000), StepOptions()
    )
    assert [code for _, code in heartbeats.due(15_000)] == ["worker_lost"]


def test_beats_put_the_deadline_off() -> None:
    heartbeats = Heartbeats()
    for beat_at in range(1_000, 30_000, 1_000):
        heartbeats.hear(msgspec.structs.replace(ROW, beat_at=beat_at), StepOptions())
        assert heartbeats.due(beat_at) == []
    assert heartbeats.due(30_000) == []
    assert len(heartbeats.due(40_000)) == 1
