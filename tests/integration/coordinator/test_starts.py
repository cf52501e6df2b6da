"""Starts that are repeated, and what is published about runs (R6; the lifecycle's ``seq`` is dense)."""

from __future__ import annotations

import json
from collections import defaultdict
from typing import Any

import pytest
from rig import Rig
from support import until


def published(rig: Rig) -> dict[str, list[dict[str, Any]]]:
    """Lifecycle events by run, in the order of their ``seq``, each once."""
    found: dict[str, dict[int, dict[str, Any]]] = defaultdict(dict)
    for message in rig.read(rig.topics.run_lifecycle):
        headers = {name: value.decode() for name, value in message.headers() or []}
        namespace, run_id, execution, seq = headers["ce_id"].split("/")
        body = json.loads(message.value() or b"")
        event = {"type": headers["ce_type"].removeprefix("ductor."), "execution": int(execution), **body}
        assert namespace == rig.namespace
        assert run_id.encode() == message.key()
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


def closed(rig: Rig, ending: str) -> None:
    """The run ``r``, ended that way."""
    rig.start("r", workflow="words", input=1)
    if ending == "completed":
        rig.signal("r", "on", signal_id="first")
        rig.until_status("completed", "r")
    elif ending == "terminated":
        rig.send(rig.topics.run_events, "r", {"type": "run.terminate", "command_id": "t"})
        rig.until_status("terminated", "r")
    else:
        rig.until_status("running", "r")


@pytest.mark.parametrize(
    ("on_conflict", "ending", "then"),
    [
        ("reject", "running", ["1 command.rejected"]),
        ("reject", "completed", ["1 command.rejected"]),
        ("restart_if_closed", "running", ["1 command.rejected"]),
        ("restart_if_closed", "completed", ["2 run.started"]),
        ("restart_if_failed", "completed", ["1 command.rejected"]),
        ("restart_if_failed", "terminated", ["2 run.started"]),
        ("terminate_existing", "running", ["1 run.terminated", "2 run.started"]),
        ("terminate_existing", "completed", ["2 run.started"]),
    ],
)
def test_a_repeated_start_with_on_conflict(rig: Rig, on_conflict: str, ending: str, then: list[str]) -> None:
    """R6: delivered five times, before and after a change of owner, it acts once and is answered once."""
    running = rig.coordinator()
    closed(rig, ending)
    start = {"type": "run.start", "workflow": "words", "input": 1, "start_id": "s", "on_conflict": on_conflict}
    rig.send(rig.topics.run_events, "r", start, start)
    known = "select id from eec_workflow_signal where ns = {ns} and kind = 'start'"
    until(lambda: rig.rows(known), what="the start applied")
    running.stop()
    rig.send(rig.topics.run_events, "r", start, start, start)
    running = rig.coordinator()
    until(lambda: running.count("ductor_duplicate_inputs", kind="start") == 3, what="three duplicates")
    rig.check()
    events = published(rig)["r"]
    before = ["1 run.started"] + ([] if ending == "running" else [f"1 run.{ending}"])
    assert types(events) == before + then
    for event in events:
        if event["type"] == "command.rejected":
            assert (event["start_id"], event["code"]) == ("s", "run_exists")


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
