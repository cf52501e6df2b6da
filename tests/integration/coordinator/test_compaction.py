"""A run that continues as new without end keeps a bounded history, and a summary that is honest about the rest (R10)."""

from __future__ import annotations

import json
from typing import Any

import pytest
from click.testing import CliRunner
from rig import Rig, Running
from rig_worker import doubled, fence
from support import until

from ductor_stream.cli.runs import runs
from ductor_stream.store.reader import RunReader

OOPS = {"outcome": "failed", "error": {"type": "Oops", "message": "no", "retryable": False}}


def kept(rig: Rig, run_id: str) -> int:
    """Transitions that are there in full."""
    query = "select count(*) as n from eec_workflow_transition where ns = {ns} and run_id = %s"
    return int(rig.rows(query, run_id)[0]["n"])


def said(rig: Rig, run_id: str, *options: str) -> str:
    """What ``runs history`` says."""
    where = ["--database", rig.database, "--namespace", rig.namespace, *options]
    return CliRunner().invoke(runs, ["history", run_id, *where], catch_exceptions=False).output


def told(rig: Rig, run_id: str) -> list[dict[str, Any]]:
    """The same for programs."""
    found: list[dict[str, Any]] = json.loads(said(rig, run_id, "--json"))
    return found


@pytest.mark.moves("ductor_transitions_folded")
def test_history_beyond_the_bound_is_folded(rig: Rig) -> None:
    """Every event is in the summary or in full, once; the checks of a namespace know of it."""
    running = rig.coordinator(rig.fast(history_kept=20))
    rig.worker()
    rig.start("r", workflow="laps", input=60)
    rig.until_status("completed", "r")
    version = rig.run("r")["record_version"]
    until(lambda: kept(rig, "r") <= 20 + 20 + 5, what="folded")
    running.stop()
    with RunReader(rig.database, rig.namespace) as reader:
        folded = reader.folded("r")
        assert folded is not None
        entries = reader.history("r")
        assert [entry.record_version for entry in entries] == list(range(folded.upto + 1, version + 1))
        assert not reader.consistency().advanced_twice
        events = [type(record.event).__struct_config__.tag for entry in entries for record in entry.records]
    assert folded.counts["finish"] + events.count("finish") == 60
    assert folded.counts["continued"] + events.count("continued") == 59
    assert running.count("ductor_transitions_folded") == folded.upto
    attempts = {row["execution"] for row in rig.attempts("r")}
    assert min(attempts) == folded.execution
    first, *rest = told(rig, "r")
    assert first["folded"]["record_versions"] == [1, folded.upto]
    assert first["folded"]["events"] == folded.counts
    assert rest[0]["record_version"] == folded.upto + 1
    line = said(rig, "r").splitlines()[0]
    assert line.startswith(f"versions 1 to {folded.upto:,} (executions 1 to {folded.execution:,}, from 20")
    assert f") are folded: {sum(folded.counts.values()):,} events, " in line
    assert f"{folded.counts['finish']} finish" in line
    rig.check()


def test_the_next_owner_goes_on_from_what_is_left(rig: Rig) -> None:
    """What a rebuild needs is never folded, however little is to be kept."""
    first = rig.coordinator(rig.fast(history_kept=1))
    rig.worker()
    rig.start("r", workflow="endless", input=[])
    for n in range(1, 20):
        rig.signal("r", str(n), signal_id=f"s{n}")
    until(lambda: rig.rows("select upto from eec_workflow_summary where ns = {ns}"), what="something folded")
    first.stop()
    rig.coordinator(rig.fast(history_kept=1))
    for n in (20, 0):
        rig.signal("r", str(n), signal_id=f"s{n}")
    rig.until_status("completed", "r")
    assert rig.run("r")["result"] == [*range(1, 21), 0]
    rig.check()


def test_what_a_retry_and_a_reset_lean_on_is_not_folded(rig: Rig) -> None:
    """Each takes its history from the execution before it; others are folded while its step is out, and its owner goes."""
    least = rig.fast(history_kept=1)
    others = iter([run_id for run_id in (f"r{n}" for n in range(60)) if rig.home(run_id) == rig.home("r")][:2])
    held: list[dict[str, Any]] = []

    def answer(task: dict[str, Any]) -> dict[str, Any] | None:
        """The third last lap fails; what is tried again is answered by the test."""
        if task["run_id"] == "r" and task["execution"] in (11, 14):
            held.append(task)
            return None
        return OOPS if (task["run_id"], task["execution"]) == ("r", 10) else doubled(task)

    def folded(run_id: str) -> None:
        until(
            lambda: rig.run(run_id).get("closed_at") and kept(rig, run_id) <= 4, within_ms=30_000, what="it is folded"
        )

    def tried_again(owner: Running, kind: str, **more: Any) -> Running:
        """The owner has time to fold whatever it may; the next one has what is kept, and gets the result."""
        rig.send(rig.topics.run_events, "r", {"type": f"run.{kind}", "run_id": "r", "command_id": kind, **more})
        task = until(lambda: held, within_ms=30_000, what="its step tried again").pop()
        other = next(others)
        rig.start(other, workflow="laps", input=8)
        folded(other)
        owner.stop()
        after = rig.coordinator(least)
        result = {"type": "attempt.finished", **fence(task), "worker": "plain", **(doubled(task) or {})}
        rig.send(rig.topics.attempt_results, "r", result)
        rig.until_status("completed", "r")
        return after

    rig.worker(answer)
    owner = rig.coordinator(least)
    rig.start("r", workflow="laps", input=12)
    rig.until_status("failed", "r")
    folded("r")
    owner = tried_again(owner, "retry")
    assert (rig.run("r")["result"], rig.run("r")["execution"]) == (1, 13)
    folded("r")
    tried_again(owner, "reset", to_transition=1)
    assert (rig.run("r")["result"], rig.run("r")["execution"]) == (1, 14)
    head, *rest = told(rig, "r")
    assert head["folded"]["record_versions"] == [1, rest[0]["record_version"] - 1]
    assert rest[-1]["record_version"] == rig.run("r")["record_version"]
    ends = [line["event"]["type"] for line in rest].count("finish") + head["folded"]["events"]["finish"]
    assert ends == 12 + 1 + 1, "each lap, the one that failed, the one that was reset"
    rig.check()


def test_signals_that_stay_in_place_are_not_folded_away(rig: Rig) -> None:
    """They are too large to be written again with each execution, and owners go in the midst of it."""
    child = rig.child(instance="one")
    rig.start("r", workflow="tally", input=0)
    words = ((f"s{n}", f"{n}{' ' * 3_000}") for n in (*range(1, 200), 0))
    signals = ({"type": "run.signal", "name": "word", "payload": word, "signal_id": id} for id, word in words)
    rig.send(rig.topics.run_events, "r", *signals)
    until(lambda: rig.rows(_IN_PLACE), what="an execution that leans on the one before")
    child.kill()
    first = rig.coordinator(rig.fast(history_kept=1), instance="one")
    until(lambda: rig.rows("select upto from eec_workflow_summary where ns = {ns}"), what="something folded")
    first.stop()
    rig.coordinator(rig.fast(history_kept=1), instance="one")
    rig.until_status("completed", "r")
    assert rig.run("r")["result"] == 199
    assert rig.run("r")["execution"] == 67
    stored = b"".join(bytes(row["records"]) for row in rig.rows(_RECORDS))
    assert b"continued_in_place" in stored
    assert len(stored) < 5 * 200 * 3_000
    rig.check()


_IN_PLACE = (
    "select 1 from eec_workflow_transition where ns = {ns} and position('continued_in_place'::bytea in records) > 0"
)
_RECORDS = "select records from eec_workflow_transition where ns = {ns}"
