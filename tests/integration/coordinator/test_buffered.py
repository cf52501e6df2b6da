"""Signals and commands that come before their run: buffered, delivered once and in order, or expired (protocol 24)."""

from __future__ import annotations

import json

import msgspec
from click.testing import CliRunner
from rig import CRC32, FAST, Rig
from support import until

from ductor_stream.cli.dead_letters import dead_letters


def buffered(rig: Rig) -> list[str]:
    """Ids of what waits for its run, in order of arrival."""
    rows = rig.rows("select id from eec_workflow_signal where ns = {ns} and body is not null order by seq")
    return [row["id"] for row in rows]


def test_signals_before_the_start_are_delivered_once_in_order(rig: Rig) -> None:
    """Protocol 24, R6: also when repeated, and when the owner changes between."""
    running = rig.coordinator()
    for n in range(4):
        rig.signal("w", f"word {n}", signal_id=f"s{n}")
        rig.signal("w", f"word {n} again", signal_id=f"s{n}")
    until(lambda: buffered(rig) == ["s0", "s1", "s2", "s3"], what="four buffered")
    running.stop()

    rig.coordinator()
    rig.signal("w", "word 1 late", signal_id="s1")
    rig.signal("w", "word 4", signal_id="s4")
    rig.start("w", workflow="words", input=5)
    rig.until_status("completed", "w")
    assert rig.run("w")["result"] == [f"word {n}" for n in range(5)]
    rig.check()
    assert rig.letters() == []


def test_signals_in_the_batch_of_the_start_keep_their_order(rig: Rig) -> None:
    """Protocol 24: buffered ones first, then those that came with the start, before and behind it."""
    running = rig.coordinator()
    rig.signal("w", "a", signal_id="a")
    until(lambda: buffered(rig) == ["a"], what="one buffered")
    running.stop()
    rig.signal("w", "b")
    rig.start("w", workflow="words", input=3)
    rig.signal("w", "c")
    rig.coordinator()
    rig.until_status("completed", "w")
    assert rig.run("w")["result"] == ["a", "b", "c"]
    rig.check()


def test_commands_before_the_start_are_buffered_too(rig: Rig) -> None:
    """Protocol 24: a pause and a terminate that overtook their start."""
    rig.coordinator()
    for run_id, kind in (("paused", "run.pause"), ("gone", "run.terminate")):
        rig.send(rig.topics.run_events, run_id, {"type": kind, "run_id": run_id}, partitioner=CRC32)
    until(lambda: len(buffered(rig)) == 2, what="two buffered")
    rig.start("paused", "gone", workflow="words", input=1)
    rig.until_status("terminated", "gone")
    rig.until_status("paused", "paused")
    rig.check()


def test_what_waits_too_long_is_a_dead_letter(rig: Rig) -> None:
    """Protocol 24, R9: expired messages have a fate that can be seen, byte for byte, and are not applied later."""
    config = msgspec.structs.replace(FAST, buffered_ttl_ms=300, expiry_sweep_s=0.1)
    rig.coordinator(config)
    body = json.dumps({"type": "run.signal", "name": "word", "payload": "föö", "signal_id": "s"}).encode()
    rig.send(rig.topics.run_events, "never", body, body, headers=[("traceparent", b"00-1-2-03")])
    letters = until(rig.letters, what="a dead letter")
    assert [(each.reason, each.key, each.value) for each in letters] == [("expired", b"never", body)]
    assert letters[0].headers["traceparent"] == "00-1-2-03"
    assert letters[0].headers["ductor-source-topic"] == rig.topics.run_events
    assert buffered(rig) == []

    rig.start("never", workflow="words", input=1)
    rig.until_status("running", "never")
    rig.send(rig.topics.run_events, "never", body)
    rig.signal("never", "in time")
    rig.until_status("completed", "never")
    assert rig.run("never")["result"] == ["in time"]
    rig.check()
    assert len(rig.letters()) == 1


def test_what_had_expired_is_applied_once_when_its_letter_is_sent_again(rig: Rig) -> None:
    """Its id is known, so that a late duplicate is not applied: somebody who sends the letter again means it."""
    rig.coordinator(msgspec.structs.replace(FAST, buffered_ttl_ms=300, expiry_sweep_s=0.1))
    body = json.dumps({"type": "run.signal", "name": "word", "payload": "föö", "signal_id": "s"}).encode()
    rig.send(rig.topics.run_events, "late", body, headers=[("traceparent", b"00-1-2-03")])
    order = {"type": "run.pause", "run_id": "other", "command_id": "c"}
    rig.send(rig.topics.run_events, "other", order)
    until(lambda: len(rig.letters()) == 2, what="two dead letters")
    rig.start("late", "other", workflow="words", input=2)
    rig.until_status("running", "late", "other")
    where = ["--kafka", rig.bootstrap, "--database", rig.database, "--namespace", rig.namespace]
    for _ in range(2):
        said = (
            CliRunner().invoke(dead_letters, ["replay", "--reason", "expired", *where], catch_exceptions=False).output
        )
        assert "sent 2 again" in said
    rig.until_status("paused", "other")
    rig.signal("late", "in time")
    rig.until_status("completed", "late")
    assert rig.run("late")["result"] == ["föö", "in time"]
    rig.check()


def test_too_many_buffered_messages_are_dead_letters(rig: Rig) -> None:
    """R10: the bound of what waits for one run that does not exist."""
    rig.coordinator(msgspec.structs.replace(FAST, buffered_limit=3))
    for n in range(5):
        rig.signal("full", n, signal_id=f"s{n}")
    letters = until(lambda: found if len(found := rig.letters()) == 2 else None, what="two dead letters")
    assert [each.reason for each in letters] == ["buffer_full"] * 2
    assert buffered(rig) == ["s0", "s1", "s2"]


def test_too_many_bytes_of_buffered_messages_are_dead_letters(rig: Rig) -> None:
    """R10: else one sender fills the memory of each owner, and in the end no query can read them any more."""
    rig.coordinator(msgspec.structs.replace(FAST, signals_bytes=25_000))
    for n in range(5):
        rig.signal("full", "x" * 10_000, signal_id=f"s{n}")
    letters = until(lambda: found if len(found := rig.letters()) == 2 else None, what="two dead letters")
    assert [each.reason for each in letters] == ["buffer_full"] * 2
    assert buffered(rig) == ["s0", "s1", "s2"]


def test_what_comes_after_the_end_is_no_second_end(rig: Rig) -> None:
    rig.worker()
    rig.coordinator()
    rig.start("r", workflow="chain", input=1)
    rig.until_status("completed", "r")
    ended = rig.run("r")
    rig.signal("r", "late")
    until(lambda: rig.run("r")["record_version"] > ended["record_version"], what="the signal")
    assert rig.run("r")["closed_at"] == ended["closed_at"]
    assert rig.run("r")["updated_at"] > ended["updated_at"]


def test_more_signals_than_a_run_may_have_waiting(rig: Rig) -> None:
    """R10, R11: what is over the limit is set aside with the reason; what was there before is taken in its order."""
    rig.coordinator(rig.fast(signals_limit=3))
    rig.start("w", workflow="words", input=4)
    rig.until_status("running", "w")
    rig.send(rig.topics.run_events, "w", {"type": "run.pause", "run_id": "w", "command_id": "p"})
    for n in range(5):
        rig.signal("w", f"word {n}", signal_id=f"s{n}")
    letters = until(lambda: len(found := rig.letters()) == 2 and found, what="two letters")
    assert [letter.reason for letter in letters] == ["buffer_full", "buffer_full"]
    assert "3 signals wait for run w" in letters[0].headers["ductor-error"]
    rig.send(rig.topics.run_events, "w", {"type": "run.resume", "run_id": "w", "command_id": "r"})
    until(lambda: rig.run("w")["status"] == "running", what="resumed")
    rig.signal("w", "word 3", signal_id="s3")
    rig.until_status("completed", "w")
    assert rig.run("w")["result"] == [f"word {n}" for n in range(4)]
    rig.check()
