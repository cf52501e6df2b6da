"""Children and ContinueAsNew on real Kafka and Postgres, their owners being killed."""

from __future__ import annotations

from typing import Any

import pytest
from coordinator_child import POINTS
from rig import Rig
from rig_worker import doubled
from support import until

NAME = "coordinator-1"


@pytest.mark.parametrize("point", POINTS)
def test_a_childs_outcome_reaches_its_parent_whenever_an_owner_dies(rig: Rig, point: str) -> None:
    """R5, protocol 8: what one run has for another is a row, written with the sender's state, applied once."""
    rig.worker()
    child = rig.child(point, instance=NAME)
    rig.start("m1", "m2", workflow="mother", input=4)
    child.wait_dead()
    rig.coordinator(instance=NAME)
    rig.until_status("completed", "m1", "m2")
    for run_id in ("m1", "m2"):
        assert rig.run(run_id)["result"] == [[0, 2]] * 4
    children = rig.rows("select run_id, status from eec_workflow_run where ns = {ns} and workflow = 'chain'")
    assert len(children) == 8
    assert {row["status"] for row in children} == {"completed"}
    rig.check()
    assert rig.rows("select id from eec_inbox where ns = {ns}") == []


@pytest.mark.parametrize(
    ("policy", "status"), [("cancel", "cancelled"), ("terminate", "terminated"), ("abandon", "running")]
)
def test_no_child_is_left_running_under_a_closed_parent_unless_abandoned(rig: Rig, policy: str, status: str) -> None:
    rig.coordinator()
    rig.start("g", workflow="guardian", input=policy)
    rig.until_status("running", "g-child")
    rig.send(rig.topics.run_events, "g", {"type": "run.terminate", "run_id": "g"})
    rig.until_status("terminated", "g")
    rig.until_status(status, "g-child")
    rig.check()


def test_signals_while_a_run_continues_as_new_in_a_loop(rig: Rig) -> None:
    """None lost, none twice, order kept, over many executions and a killed owner."""
    child = rig.child("after-commit", instance=NAME)
    rig.start("e", workflow="endless", input=[])
    for number in range(1, 150):
        rig.signal("e", str(number), signal_id=f"s{number}")
    child.wait_dead()
    rig.coordinator(instance=NAME)
    for number in (*range(150, 300), 0):
        rig.signal("e", str(number), signal_id=f"s{number}")
    rig.until_status("completed", "e")
    run = rig.run("e")
    assert run["result"] == [*range(1, 300), 0]
    assert run["execution"] == 100
    rig.check()


@pytest.mark.parametrize("limit", [{"history_limit": 10}, {"history_bytes": 2_000}])
def test_a_history_without_end_fails_its_run_visibly(rig: Rig, limit: dict[str, int]) -> None:
    """R10: before it hurts anyone, and only itself."""
    rig.worker()
    rig.coordinator(rig.fast(**limit))
    rig.start("long", input=50)
    rig.start("short", input=5)
    rig.until_status("failed", "long")
    rig.until_status("completed", "short")
    assert rig.run("long")["error"]["code"] == "history_limit"
    assert "continue as new" in rig.run("long")["error"]["message"]
    rig.check()


def test_retry_and_reset_open_a_new_execution(rig: Rig) -> None:
    """What came before is kept; results of the old execution are late."""
    broken = [True]

    def answer(task: dict[str, Any]) -> dict[str, Any] | None:
        if task["input"] == [1] and broken[0]:
            return {"outcome": "failed", "error": {"type": "Oops", "message": "no", "retryable": False}}
        return doubled(task)

    worker = rig.worker(answer)
    rig.coordinator()
    rig.start("f", workflow="chain", input=3)
    rig.until_status("failed", "f")
    broken[0] = False
    rig.send(rig.topics.run_events, "f", {"type": "run.retry", "run_id": "f", "command_id": "c1"})
    rig.until_status("completed", "f")
    assert rig.run("f")["result"] == [0, 2, 4]
    assert worker.effects[f"{rig.namespace}/f/1/1"] == 1, "what succeeded is not run again"
    assert worker.effects[f"{rig.namespace}/f/1/2"] == 2, "what failed is tried again under its key"
    rig.send(rig.topics.run_events, "f", {"type": "run.reset", "run_id": "f", "command_id": "c2", "to_node": "2"})
    until(lambda: rig.run("f")["execution"] == 3, what="the reset applied")
    rig.until_status("completed", "f")
    assert (rig.run("f")["result"], rig.run("f")["execution"]) == ([0, 2, 4], 3)
    assert worker.effects[f"{rig.namespace}/f/1/1"] == 1
    assert worker.effects[f"{rig.namespace}/f/3/2"] == 1, "a reset node has a key of its own"
    rig.check()
