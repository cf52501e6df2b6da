"""Waits for a signal under ``asyncio.timeout``: who gives up loses nothing, and nothing is heard twice (R5, R6)."""

from __future__ import annotations

import json
from typing import Any

from rig import Rig
from support import until

from ductor_stream.engine.state import SignalTaken, decode_records


def decisions(rig: Rig, run_id: str) -> list[Any]:
    """All of the run's history, in order."""
    query = "select records from eec_workflow_transition where ns = {ns} and run_id = %s order by record_version"
    records = [record for row in rig.rows(query, run_id) for record in decode_records(bytes(row["records"]))]
    return [said for record in records for said in record.decisions or ()]


def taken(rig: Rig, run_id: str) -> list[str]:
    """Ids of the signals that the run took."""
    return [said.signal_id for said in decisions(rig, run_id) if isinstance(said, SignalTaken)]


def timers(rig: Rig, run_id: str) -> int:
    """How many deadlines the run has begun so far."""
    return sum(getattr(said, "kind", "") == "timer" for said in decisions(rig, run_id))


def send(rig: Rig, run_id: str, *words: str) -> None:
    """These words, each with itself as its id, and each of them twice."""
    bodies: list[dict[str, Any]] = [
        {"type": "run.signal", "run_id": run_id, "name": "word", "payload": word, "signal_id": word} for word in words
    ]
    rig.send(rig.topics.run_events, run_id, *(body for body in bodies for _ in range(2)))


def test_what_comes_after_the_deadline_is_for_the_next_wait(rig: Rig) -> None:
    """Also when the owner that saw the deadline pass is killed."""
    child = rig.child(instance="one")
    rig.start("late", workflow="patient", input=[0.2, 3_600])
    until(lambda: timers(rig, "late") == 2, what="given up once")
    child.kill()
    send(rig, "late", "a")
    rig.coordinator(instance="one")
    send(rig, "late", "b", "end")
    rig.until_status("completed", "late")
    assert rig.run("late")["result"] == ["-", "a", "b"]
    assert taken(rig, "late") == ["a", "b", "end"]
    rig.check()


def test_a_signal_that_lies_in_the_log_when_its_deadline_passes(rig: Rig) -> None:
    """Nobody was there to hear either: both are due at once. One wait has one end, and the signal is heard once."""
    running = rig.coordinator()
    ids = [f"r{n}" for n in range(8)]
    for run_id in ids:
        rig.start(run_id, workflow="patient", input=[1, 3_600])
    rig.until_status("running", *ids)
    running.stop()
    for run_id in ids:
        send(rig, run_id, "a", "b")
    now = "select max(started_at) + interval '1.1 s' < clock_timestamp() as over from eec_workflow_run where ns = {ns}"
    until(lambda: rig.rows(now)[0]["over"], what="all deadlines have passed")
    rig.coordinator()
    for run_id in ids:
        send(rig, run_id, "end")
    rig.until_status("completed", *ids)
    for run_id in ids:
        assert rig.run(run_id)["result"] in (["-", "a", "b"], ["a", "b"])
        assert taken(rig, run_id) == ["a", "b", "end"]
    rig.check()


def test_signals_that_race_their_deadlines(rig: Rig) -> None:
    """Hundreds of deadlines, some of a moment, some long enough, while words come: all are heard, once, in their order."""
    rig.coordinator()
    waits = [0.001 * 2 ** (n % 8) for n in range(40)]
    ids = [f"r{n}" for n in range(10)]
    for run_id in ids:
        rig.start(run_id, workflow="patient", input=waits)
    rig.until_status("running", *ids)
    words = [str(n) for n in range(60)]
    for first in range(0, 60, 3):
        for run_id in ids:
            send(rig, run_id, *words[first : first + 3])
    for run_id in ids:
        send(rig, run_id, "end")
    rig.until_status("completed", *ids)
    results = [rig.run(run_id)["result"] for run_id in ids]
    for run_id, result in zip(ids, results, strict=True):
        assert [word for word in result if word != "-"] == words
        assert taken(rig, run_id) == [*words, "end"]
    ends = {word == "-" for result in results for word in result[: len(waits)]}
    assert ends == {True, False}, json.dumps(results)
    rig.check()
