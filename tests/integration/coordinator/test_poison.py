"""One bad run hurts nobody else: its inputs are set aside, it is failed if it can be, all others go on (R11, protocol 23)."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import pytest
from rig import Rig
from support import until

from ductor_stream.coordinator import ownership, ticking
from ductor_stream.coordinator.prepared import Prepared
from ductor_stream.engine.events import Condemned
from ductor_stream.errors import InvariantViolation

Spoil = Callable[[Prepared, str], None]


def u0000(prepared: Prepared, run_id: str) -> None:
    """A text that Postgres does not store."""
    prepared.batch.runs = [
        msgspec.structs.replace(run, reason="a\0b") if run.run_id == run_id else run for run in prepared.batch.runs
    ]


def surrogate(prepared: Prepared, run_id: str) -> None:
    """A text that is no UTF-8: it fails before anything is sent."""
    prepared.batch.attempts = [
        msgspec.structs.replace(row, step="\ud800") if row.run_id == run_id else row for row in prepared.batch.attempts
    ]


def too_large_for_an_index(prepared: Prepared, run_id: str) -> None:
    """A key beyond 2,704 bytes."""
    prepared.batch.attempts = [
        msgspec.structs.replace(row, node_id=secrets.token_hex(9_000)) if row.run_id == run_id else row
        for row in prepared.batch.attempts
    ]


def number_out_of_range(prepared: Prepared, run_id: str) -> None:
    """More than an integer column holds."""
    prepared.batch.attempts = [
        msgspec.structs.replace(row, attempt=1 << 40) if row.run_id == run_id else row
        for row in prepared.batch.attempts
    ]


def spoiling(poisons: Mapping[str, Spoil], *, condemned_too: bool = False) -> Callable[[Any], None]:
    """Lays its poison into every batch that concerns a victim, but for the one that fails it."""

    def prepare(coordinator: Any) -> None:
        tick = coordinator.tick

        def wrapped(work: Any, entries: Any) -> Prepared:
            prepared: Prepared = tick(work, entries)
            spared = {entry.run_id for entry in entries if isinstance(entry.input, Condemned)}
            for victim, spoil in poisons.items():
                if condemned_too or victim not in spared:
                    spoil(prepared, victim)
            return prepared

        coordinator.tick = wrapped

    return prepare


def test_runs_whose_data_cannot_be_stored(rig: Rig) -> None:
    """R11: their starts are set aside, byte for byte, in the midst of a batch of others that complete."""
    poisons = {each.__name__: each for each in (u0000, surrogate, too_large_for_an_index, number_out_of_range)}
    ids = [f"r{n}" for n in range(8)]
    rig.coordinator().stop()
    rig.start(*ids[:4], *poisons, *ids[4:])
    rig.worker()
    rig.coordinator(prepare=spoiling(poisons))
    rig.until_status("completed", *ids)
    letters = until(lambda: found if len(found := rig.letters()) == 4 else None, what="four dead letters")
    assert {(letter.reason, letter.key) for letter in letters} == {("poisoned_run", name.encode()) for name in poisons}
    assert {json.loads(letter.value or b"")["type"] for letter in letters} == {"run.start"}
    assert [rig.run(name) for name in poisons] == [{}] * 4
    rig.check()


def test_a_run_that_was_well_before(rig: Rig) -> None:
    """R9: an open run is failed, so that somebody sees it, and its input is kept."""
    running = rig.coordinator(prepare=spoiling({"victim": too_large_for_an_index}))
    rig.start("victim", workflow="words", input=1)
    rig.until_status("running", "victim")
    running.stop()
    rig.coordinator(prepare=spoiling({"victim": u0000}))
    rig.signal("victim", "on", signal_id="s")
    rig.until_status("failed", "victim")
    assert rig.run("victim")["error"]["code"] == "poisoned"
    assert [(letter.reason, letter.key) for letter in rig.letters()] == [("poisoned_run", b"victim")]
    rig.check()


def test_a_batch_full_of_poison(rig: Rig) -> None:
    """R11: thirty in one batch, and not even the attempt to fail them lands."""
    bad, good = [f"bad{n}" for n in range(30)], [f"r{n}" for n in range(6)]
    rig.coordinator().stop()
    rig.start(*bad[:15], *good, *bad[15:])
    rig.worker()
    running = rig.coordinator(prepare=spoiling(dict.fromkeys(bad, u0000), condemned_too=True))
    rig.until_status("completed", *good)
    until(lambda: len(rig.letters()) == 30, what="thirty dead letters")
    assert running.reasons() == []
    rig.check()


def test_a_run_whose_tasks_cannot_be_encoded(rig: Rig) -> None:
    """R11: what fails while the batch is put together is its run's own affair as well."""

    def prepare(coordinator: Any) -> None:
        task = coordinator.committer._encoder.task

        def wrapped(run_id: str, *rest: Any) -> Any:
            if run_id == "victim":
                raise RuntimeError("cannot be encoded")
            return task(run_id, *rest)

        coordinator.committer._encoder.task = wrapped

    rig.worker()
    rig.coordinator(prepare=prepare)
    ids = [f"r{n}" for n in range(6)]
    rig.start(*ids[:3], "victim", *ids[3:])
    rig.until_status("completed", *ids)
    assert [(letter.reason, letter.key) for letter in until(rig.letters)] == [("poisoned_run", b"victim")]
    rig.check()


def test_a_step_forward_too_large_for_any_statement(rig: Rig) -> None:
    """R11: Postgres reads no statement over a gigabyte, and a commit that it does not read would be tried for ever."""
    rig.worker()
    rig.coordinator(rig.fast(history_bytes=50_000))
    rig.start("victim", workflow="measure", input=100_000)
    rig.start("small", workflow="measure", input=100)
    rig.until_status("completed", "small")
    [letter] = until(rig.letters, what="a letter")
    assert (letter.reason, letter.key) == ("poisoned_run", b"victim")
    assert "bytes of history in one step forward, 50,000 are the limit" in letter.headers["ductor-error"]
    rig.check()


def test_an_owner_that_can_commit_nothing_ends(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """R9: others, or a process begun anew, may be able to; turns in which nothing was to be done prove nothing."""
    monkeypatch.setattr(ownership, "_delay", lambda _failures: 0.02)
    running = rig.coordinator()

    def refuse(_batch: Any) -> int:
        raise InvariantViolation("a fault of ours")

    # Not before it is ready: what it may commit at its start would end it.
    running.coordinator.store.commit = refuse  # type: ignore[method-assign]
    rig.start("r")
    until(lambda: not running.alive, within_ms=60_000, what="its end")
    with pytest.raises(InvariantViolation, match="a fault of ours"):
        running.stop()


def test_a_tick_that_fails(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """R11: a fault of the engine's own stays with the run that it shows in."""
    real = ticking.tick

    def tick(definitions: Any, run_id: str, *rest: Any, **named: Any) -> Any:
        if run_id == "victim":
            raise ZeroDivisionError("a fault of ours")
        return real(definitions, run_id, *rest, **named)

    monkeypatch.setattr(ticking, "tick", tick)
    rig.worker()
    rig.coordinator()
    ids = [f"r{n}" for n in range(6)]
    rig.start(*ids[:3], "victim", *ids[3:])
    rig.until_status("completed", *ids)
    (letter,) = until(rig.letters)
    assert (letter.reason, letter.key) == ("tick_failed", b"victim")
    assert "a fault of ours" in letter.headers["ductor-error"]
    rig.check()


def test_a_child_that_cannot_be_started(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """R9, protocol 24: its parent is told, though there is no run that could tell it."""
    real = ticking.tick

    def tick(definitions: Any, run_id: str, *rest: Any, **named: Any) -> Any:
        if run_id == "parent-child":
            raise ZeroDivisionError("a fault of ours")
        return real(definitions, run_id, *rest, **named)

    monkeypatch.setattr(ticking, "tick", tick)
    rig.coordinator()
    rig.start("parent", workflow="guardian", input="cancel")
    rig.until_status("failed", "parent")
    error = rig.run("parent")["error"]
    assert error["code"] == "child"
    assert "parent-child refused: ZeroDivisionError: a fault of ours" in error["message"]
    assert rig.run("parent-child") == {}
    rig.check()


def test_runs_that_this_release_cannot_read(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """R11, protocol 19: their input waits, others go on; whoever can read them applies everything, once, in order."""
    monkeypatch.setattr(ticking, "_TRY_LATER_MS", 200)
    states = {"empty": "\\x00", "cut": "\\x9563", "newer": "\\xdc001000"}
    running = rig.coordinator()
    rig.start(*states, workflow="words", input=2)
    rig.start("step")
    rig.until_status("running", *states, "step")
    until(lambda: not rig.rows("select from eec_outbox where ns = {ns}"), what="confirmed")
    running.stop()
    kept = {run_id: rig.run(run_id)["state"] for run_id in (*states, "step")}
    for run_id in kept:
        damaged = states.get(run_id, "\\x00")
        rig.rows("update eec_workflow_run set state = %s::bytea where ns = {ns} and run_id = %s", damaged, run_id)
    rig.coordinator()
    for run_id in states:
        rig.signal(run_id, "a")
        rig.signal(run_id, "b")
    rig.worker()
    rig.start("other")
    rig.until_status("completed", "other")
    until(lambda: len(rig.rows("select id from eec_inbox where ns = {ns}")) >= 7, what="inputs that wait")
    for run_id, good in kept.items():
        rig.rows("update eec_workflow_run set state = %s where ns = {ns} and run_id = %s", good, run_id)
    rig.until_status("completed", *kept)
    assert [rig.run(run_id)["result"] for run_id in states] == [["a", "b"]] * 3
    rig.check()
