"""Starts that are repeated, and what is published about runs (R6; the lifecycle's ``seq`` is dense)."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pytest
from rig import Rig
from rig_app import make_app
from support import until

from ductor_stream.config import Settings
from ductor_stream.errors import RunExists, RunTerminated
from ductor_stream.wiring.clients import SyncClient


def published(rig: Rig) -> dict[str, list[dict[str, Any]]]:
    """Lifecycle events by run, in the order of their ``seq``, each once."""
    found: dict[str, dict[int, dict[str, Any]]] = defaultdict(dict)
    for told in rig.told():
        if told.type == "start.answered":
            continue  # under the number of the event before it
        namespace, run_id, execution, seq = told.id.split("/")
        event = {"type": told.type, "execution": int(execution), **told.data}
        assert namespace == rig.namespace
        assert run_id == told.run_id
        known = found[run_id].setdefault(int(seq), event)
        assert known == event, "two events under one number"
    return {run_id: [events[seq] for seq in sorted(events)] for run_id, events in found.items() if dense(events)}


def dense(events: dict[int, Any]) -> bool:
    """Numbers without a gap."""
    assert sorted(events) == list(range(1, len(events) + 1))
    return True


def types(events: list[dict[str, Any]]) -> list[str]:
    """What happened, by execution."""
    return [f"{event['execution']} {event['type']}" for event in events]


CASES = [
    ("reject", "running", ["1 command.rejected"]),
    ("reject", "completed", ["1 command.rejected"]),
    ("restart_if_closed", "running", ["1 command.rejected"]),
    ("restart_if_closed", "completed", ["2 run.started"]),
    ("restart_if_failed", "completed", ["1 command.rejected"]),
    ("restart_if_failed", "terminated", ["2 run.started"]),
    ("terminate_existing", "running", ["1 run.terminated", "2 run.started"]),
    ("terminate_existing", "completed", ["2 run.started"]),
]
"""(on_conflict, how the run ended that is there, what is published then)"""


def named(on_conflict: str, ending: str) -> str:
    """The run id of a case."""
    return f"{on_conflict}-{ending}"


@pytest.mark.moves("ductor_duplicate_inputs")
def test_a_repeated_start_with_on_conflict(rig: Rig) -> None:
    """R6: delivered five times, before and after a change of owner, it acts once and is answered once."""
    running = rig.coordinator()
    for on_conflict, ending, _ in CASES:
        run_id = named(on_conflict, ending)
        rig.start(run_id, workflow="words", input=1)
        if ending == "completed":
            rig.signal(run_id, "on", signal_id="first")
        elif ending == "terminated":
            rig.send(rig.topics.run_events, run_id, {"type": "run.terminate", "command_id": "t"})
    for ending in ("running", "completed", "terminated"):
        rig.until_status(ending, *(named(how, end) for how, end, _ in CASES if end == ending))

    def again(times: int) -> None:
        for on_conflict, ending, _ in CASES:
            start = {"type": "run.start", "workflow": "words", "input": 1, "start_id": "s", "on_conflict": on_conflict}
            rig.send(rig.topics.run_events, named(on_conflict, ending), *[start] * times)

    again(2)
    known = "select id from eec_workflow_signal where ns = {ns} and kind = 'start'"
    until(lambda: len(rig.rows(known)) == len(CASES), what="the starts applied")
    running.stop()
    again(3)
    running = rig.coordinator()
    until(lambda: running.count("ductor_duplicate_inputs", kind="start") == 3 * len(CASES), what="duplicates")
    rig.check()
    events = published(rig)
    for on_conflict, ending, then in CASES:
        before = ["1 run.started"] + ([] if ending == "running" else [f"1 run.{ending}"])
        assert types(events[named(on_conflict, ending)]) == before + then, (on_conflict, ending)
    rejected = [event for each in events.values() for event in each if event["type"] == "command.rejected"]
    assert {(event["start_id"], event["code"]) for event in rejected} == {("s", "run_exists")}
    refused = {named(how, end) for how, end, then in CASES if then[-1].endswith("rejected")}
    answered = [told for told in rig.told() if told.type == "start.answered"]
    assert {told.run_id for told in answered} == refused, (
        "the others are under way again: their end is told when it comes"
    )
    assert {(told.data["start_id"], told.data["status"], told.data["code"]) for told in answered} == {
        ("s", "rejected", "run_exists")
    }


def test_a_start_that_uses_what_has_ended_is_told_how_it_ended(rig: Rig) -> None:
    """R9: a client without a database, that was not there when the run ended, also after a change of owner."""
    running = rig.coordinator()
    rig.start("r", workflow="words", input=1)
    rig.signal("r", "on", signal_id="first")
    rig.until_status("completed", "r")
    rig.start("s", workflow="words", input=1)
    rig.send(rig.topics.run_events, "s", {"type": "run.terminate", "command_id": "t", "reason": "enough"})
    rig.until_status("terminated", "s")
    before = rig.rows("select run_id, record_version from eec_workflow_run where ns = {ns} order by run_id")
    running.stop()
    rig.coordinator()
    settings = Settings(kafka_bootstrap=rig.bootstrap, kafka={"fetch.wait.max.ms": "20"})
    with SyncClient(make_app(rig.namespace), settings) as client:
        assert client.start("words", 1, run_id="r").result(timeout=60) == ["on"]
        assert client.start("words", 1, run_id="r").result(timeout=60) == ["on"], "once more, by the same client"
        with pytest.raises(RunTerminated):
            client.start("words", 1, run_id="s").result(timeout=60)
    rig.check()
    assert before == rig.rows("select run_id, record_version from eec_workflow_run where ns = {ns} order by run_id")


def test_a_start_that_is_sent_again_is_told_what_became_of_it(rig: Rig) -> None:
    """R9: its sender died before it heard, has no database, and asked for something else than ``use_existing``."""
    running = rig.coordinator()
    settings = Settings(kafka_bootstrap=rig.bootstrap, kafka={"fetch.wait.max.ms": "20"})
    asked = [
        ("r", "s1", "restart_if_failed"),
        ("r", "s2", "reject"),
        ("open", "s1", "reject"),
        ("open", "s2", "reject"),
    ]
    known = "select id from eec_workflow_signal where ns = {ns} and kind = 'start'"
    with SyncClient(make_app(rig.namespace), settings) as client:
        for run_id, start_id, on_conflict in asked:
            client.start("words", 1, run_id=run_id, start_id=start_id, on_conflict=on_conflict)
    until(lambda: len(rig.rows(known)) == len(asked), what="the starts applied")
    rig.signal("r", "on", signal_id="first")
    rig.until_status("completed", "r")
    before = rig.rows("select run_id, record_version from eec_workflow_run where ns = {ns} order by run_id")
    running.stop()
    rig.coordinator()
    with SyncClient(make_app(rig.namespace), settings) as client:
        ended, refused, under_way, refused_too = (
            client.start("words", 1, run_id=run_id, start_id=start_id, on_conflict=on_conflict)
            for run_id, start_id, on_conflict in asked
        )
        assert ended.result(timeout=60) == ["on"]
        for handle in (refused, refused_too):
            with pytest.raises(RunExists):
                handle.result(timeout=60)
        assert before == rig.rows("select run_id, record_version from eec_workflow_run where ns = {ns} order by run_id")
        rig.signal("open", "on", signal_id="first")
        assert under_way.result(timeout=60) == ["on"]
    rig.check()


def test_the_lifecycle_has_no_gap(rig: Rig) -> None:
    """R5: numbers are dense per run over pauses, rejections, executions and owners, and tell of committed versions."""
    running = rig.coordinator()
    rig.worker()
    ids = [f"r{n}" for n in range(6)]

    def command(kind: str, command_id: str) -> None:
        for run_id in ids:
            rig.send(rig.topics.run_events, run_id, {"type": f"run.{kind}", "command_id": command_id})

    rig.start(*ids, workflow="order", input=2)
    command("pause", "p")
    command("pause", "p again")
    rig.until_status("paused", *ids)
    running.stop()
    rig.coordinator()
    command("resume", "r")
    for run_id in ids:
        rig.signal(run_id, "go", signal_id="go")
    rig.until_status("completed", *ids)
    command("cancel", "late")
    for run_id in ids:
        again = {"start_id": "s", "on_conflict": "restart_if_closed"}
        rig.start(run_id, workflow="chain", input=1, **again)
    rows = "select count(*) from eec_workflow_run where ns = {ns} and execution = 2 and status = 'completed'"
    until(lambda: rig.rows(rows) == [{"count": len(ids)}], what="the second executions completed")
    rig.check()
    events = published(rig)
    assert events.keys() == set(ids)
    for run_id in ids:
        assert types(events[run_id]) == [
            "1 run.started",
            "1 run.paused",
            "1 command.rejected",
            "1 run.resumed",
            "1 run.completed",
            "1 command.rejected",
            "2 run.started",
            "2 run.completed",
        ]
        versions = [event["record_version"] for event in events[run_id]]
        assert versions == sorted(versions)
        assert versions[-1] == rig.run(run_id)["record_version"]
        assert events[run_id][-1]["result"] == rig.run(run_id)["result"] == [0]
