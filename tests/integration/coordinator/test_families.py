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


LEVELS = 4
TREE = "select status, count(*) as n from eec_workflow_run where ns = {ns} and workflow = 'tree' group by status"


def grown(rig: Rig) -> None:
    """All of the tree is there, and its leaves wait."""
    whole = 2 ** (LEVELS + 1) - 1
    until(lambda: rig.rows(TREE) == [{"status": "running", "n": whole}], within_ms=30_000, what="the whole tree")


def test_a_deep_tree_ends_though_its_owner_dies_while_it_grows_and_while_it_ends(rig: Rig) -> None:
    """R5: the outcome of each leaf goes up level by level, whoever owns what."""
    child = rig.child("after-commit", instance=NAME)
    rig.start("t", workflow="tree", input=LEVELS)
    child.wait_dead()
    owner = rig.coordinator(instance=NAME)
    grown(rig)
    owner.stop()
    for number in range(2**LEVELS):
        leaf = "t" + "".join("lr"[number >> level & 1] for level in range(LEVELS))
        rig.signal(leaf, "on", signal_id="s")
    rig.child("after-dispatch", instance=NAME).wait_dead()
    rig.coordinator(instance=NAME)
    rig.until_status("completed", "t")
    assert rig.run("t")["result"] == 2 ** (LEVELS + 1) - 1
    assert rig.rows(TREE) == [{"status": "completed", "n": 2 ** (LEVELS + 1) - 1}]
    rig.check()


def test_a_deep_tree_is_cancelled_to_its_leaves_though_its_owner_dies(rig: Rig) -> None:
    first = rig.coordinator(instance=NAME)
    rig.start("t", workflow="tree", input=LEVELS)
    grown(rig)
    first.stop()
    rig.send(rig.topics.run_events, "t", {"type": "run.cancel", "run_id": "t"})
    rig.child("mid-dispatch", instance=NAME).wait_dead()
    rig.coordinator(instance=NAME)
    until(lambda: rig.rows(TREE) == [{"status": "cancelled", "n": 2 ** (LEVELS + 1) - 1}], what="all cancelled")
    rig.check()


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
