"""Children and ContinueAsNew on real Kafka and Postgres, their owners being killed."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from coordinator_child import POINTS
from rig import Rig
from rig_worker import doubled
from support import until

from ductor_stream.coordinator.service import Coordinator

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


def test_headers_of_a_start_reach_the_tasks_of_the_run_and_of_its_child(rig: Rig) -> None:
    """docs/wire.md: a trace does not end where a child begins. What is no context stays behind."""
    rig.worker()
    rig.coordinator()
    context = [("traceparent", b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"), ("ductor-ctx-tenant", b"7")]
    start = {"type": "run.start", "workflow": "escort", "input": 2}
    rig.send(rig.topics.run_events, "e", start, headers=[*context, ("other", b"x")])
    rig.until_status("completed", "e")
    tasks = rig.read(rig.topics.tasks("default"))
    assert sorted(task.key() or b"" for task in tasks) == [b"e", b"e-child", b"e-child"]
    for task in tasks:
        assert sorted(task.headers() or []) == sorted([("ductor-wire", b"1"), *context]), task.key()


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
    """R9: whether it was terminated, cancelled, ran out of its time, or gave way to another execution of its id."""
    ends = {"terminated": "terminated", "cancelled": "cancelled", "late": "timed_out", "replaced": "completed"}
    rig.coordinator()
    rig.start("terminated", "cancelled", "replaced", workflow="guardian", input=policy)
    rig.start("late", workflow="guardian", input=policy, run_timeout_ms=1_500)
    rig.until_status("running", "terminated-child", "cancelled-child", "replaced-child")
    rig.send(rig.topics.run_events, "terminated", {"type": "run.terminate", "run_id": "terminated"})
    rig.send(rig.topics.run_events, "cancelled", {"type": "run.cancel", "run_id": "cancelled"})
    rig.start("replaced", workflow="words", input=0, on_conflict="terminate_existing", start_id="other")
    for run_id, end in ends.items():
        rig.until_status(end, run_id)
        rig.until_status(status, f"{run_id}-child")
    assert (rig.run("replaced")["workflow"], rig.run("replaced")["execution"]) == ("words", 2)
    rig.check()
    assert {rig.run(f"{run_id}-child")["status"] for run_id in ends} == {status}, "all is at rest"


@pytest.mark.parametrize("policy", ["cancel", "terminate"])
def test_a_run_that_had_the_childs_id_before_is_left_alone(rig: Rig, policy: str) -> None:
    """Protocol 24: the parent ends before it hears that its child could not be started."""
    told = threading.Event()

    def hold_back(coordinator: Coordinator) -> None:
        inbox = coordinator.store.inbox
        coordinator.store.inbox = lambda *asked: inbox(*asked) if told.is_set() else []  # type: ignore[method-assign]

    rig.coordinator(prepare=hold_back)
    rig.start("g-child", workflow="words", input=1)
    rig.start("g", workflow="guardian", input=policy)
    rig.until_status("running", "g-child", "g")
    rig.send(rig.topics.run_events, "g", {"type": "run.terminate", "run_id": "g"})
    rig.until_status("terminated", "g")
    told.set()
    until(lambda: rig.rows("select id from eec_inbox where ns = {ns}") == [], what="all that they had for each other")
    assert rig.run("g-child")["status"] == "running"
    rig.signal("g-child", "mine", signal_id="s")
    rig.until_status("completed", "g-child")
    assert rig.run("g-child")["result"] == ["mine"]
    rig.check()


def test_a_detached_child_is_started_and_outlives_whoever_started_it(rig: Rig) -> None:
    """R5: once, though the owner is killed while some have been started and some have not."""
    ids = [f"l{number}" for number in range(30)]
    owned = [f"{run_id}-own" for run_id in ids]
    child = rig.child(instance=NAME)
    rig.start(*ids, workflow="launcher", input=None)
    there = "select from eec_workflow_run where ns = {ns} and workflow = 'words'"
    until(lambda: rig.rows(there), what="the first of them")
    child.kill()
    rig.coordinator(instance=NAME)
    rig.until_status("completed", *ids)
    rig.until_status("running", *owned)
    for run_id in owned:
        rig.signal(run_id, "heard", signal_id="s")
    rig.until_status("completed", *owned)
    assert [rig.run(run_id)["result"] for run_id in ids] == owned
    assert {rig.run(run_id)["execution"] for run_id in owned} == {1}
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


def until_repaired(repaired: threading.Event) -> Any:
    """The second step of a chain fails for good until then."""

    def answer(task: dict[str, Any]) -> dict[str, Any] | None:
        if task["input"] == [1] and not repaired.is_set():
            return {"outcome": "failed", "error": {"type": "Oops", "message": "no", "retryable": False}}
        return doubled(task)

    return answer


def test_retry_and_reset_open_a_new_execution(rig: Rig) -> None:
    """What came before is kept; results of the old execution are late."""
    repaired = threading.Event()
    worker = rig.worker(until_repaired(repaired))
    rig.coordinator()
    rig.start("f", workflow="chain", input=3)
    rig.until_status("failed", "f")
    repaired.set()
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
    body = {"type": "run.reset", "run_id": "f", "to_transition": 1}
    rig.send(rig.topics.run_events, "f", body | {"command_id": "c3"})
    until(lambda: rig.run("f")["execution"] == 4, what="the reset to its start applied")
    rig.until_status("completed", "f")
    assert rig.run("f")["result"] == [0, 2, 4]
    assert worker.effects[f"{rig.namespace}/f/4/1"] == 1
    rig.check()


@pytest.mark.parametrize("killed", [False, True])
def test_a_retry_goes_on_with_the_child_that_failed(rig: Rig, killed: bool) -> None:
    """R7: a step of theirs that has succeeded is not run again, and one that failed has its key again."""
    repaired = threading.Event()
    worker = rig.worker(until_repaired(repaired))
    owner = rig.coordinator()
    rig.start("m", workflow="mother", input=1)
    rig.until_status("failed", "m")
    repaired.set()
    if killed:
        owner.stop()
        child = rig.child("after-commit", instance=NAME)
        rig.send(rig.topics.run_events, "m", {"type": "run.retry", "run_id": "m", "command_id": "c"})
        child.wait_dead()
        rig.coordinator(instance=NAME)
    else:
        rig.send(rig.topics.run_events, "m", {"type": "run.retry", "run_id": "m", "command_id": "c"})
    rig.until_status("completed", "m")
    assert rig.run("m")["result"] == [[0, 2]]
    [child_run] = rig.rows("select run_id, execution from eec_workflow_run where ns = {ns} and workflow = 'chain'")
    assert child_run["execution"] == 2, "no second run beside the one that is there"
    escaped = child_run["run_id"].replace("/", "%2F")
    assert worker.effects[f"{rig.namespace}/{escaped}/1/1"] == 1, "what succeeded is not run again"
    assert worker.effects[f"{rig.namespace}/{escaped}/1/2"] == 2, "what failed is tried again under its key"
    assert len(worker.effects) == 2
    rig.check()


def test_a_reset_begins_children_anew(rig: Rig) -> None:
    """The one with an id of the code's in its next execution, the other under an id of its own."""
    rig.worker()
    rig.coordinator()
    rig.start("e", workflow="escort", input=2)
    rig.start("m", workflow="mother", input=1)
    rig.until_status("completed", "e", "m")
    rig.send(rig.topics.run_events, "e", {"type": "run.reset", "run_id": "e", "command_id": "c", "to_node": "1"})
    rig.send(rig.topics.run_events, "m", {"type": "run.reset", "run_id": "m", "command_id": "c", "to_transition": 1})
    until(lambda: (rig.run("e")["execution"], rig.run("m")["execution"]) == (2, 2), what="the resets applied")
    rig.until_status("completed", "e", "m")
    assert rig.run("e")["result"] == [4, 0, 2]
    assert (rig.run("e-child")["execution"], rig.run("e-child")["status"]) == (2, "completed")
    assert rig.run("m")["result"] == [[0, 2]]
    ids = {row["run_id"] for row in rig.rows("select run_id from eec_workflow_run where ns = {ns}")}
    children = sorted(ids - {"e", "m", "e-child"})
    assert len(children) == 2 and children[1] == f"{children[0]}/~2", children
    rig.check()
