"""A run that continues as new without end keeps a bounded history, and a summary that is honest about the rest (R10)."""

from __future__ import annotations

import json
from typing import Any

from click.testing import CliRunner
from rig import Rig
from support import until

from ductor_stream.cli.runs import runs
from ductor_stream.store.reader import RunReader


def kept(rig: Rig, run_id: str) -> int:
    """Transitions that are there in full."""
    query = "select count(*) as n from eec_workflow_transition where ns = {ns} and run_id = %s"
    return int(rig.rows(query, run_id)[0]["n"])


def told(rig: Rig, run_id: str) -> list[dict[str, Any]]:
    """What ``runs history`` says."""
    options = ["--database", rig.database, "--namespace", rig.namespace, "--json"]
    said = CliRunner().invoke(runs, ["history", run_id, *options], catch_exceptions=False)
    found: list[dict[str, Any]] = json.loads(said.output)
    return found


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
