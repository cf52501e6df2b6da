"""After the commit of a cancel cleanup and shields alone go on, after that of a terminate nothing does (R4, R5, R8).

The owner dies when the order is committed and nobody has heard what it leads to: the next one finds that in the outbox.
"""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import msgspec
import pytest
from rig import Rig
from rig_control import finish, order
from rig_worker import PlainWorker, silent
from support import until

from ductor_stream.engine.state import decode_header

NAME = "coordinator-1"


def taken(worker: PlainWorker, *steps: str) -> dict[str, dict[str, Any]]:
    """The tasks of these steps, once the worker has them and no other."""

    def look() -> dict[str, dict[str, Any]]:
        found = {task["step"]: task for task in worker.tasks}
        assert found.keys() == set(steps)
        return found

    return until(look, within_ms=30_000, what=f"the tasks of {steps}")


def sent(rig: Rig) -> Counter[str]:
    """What lies in the queue by step: what is redriven lies there twice."""
    return Counter(json.loads(task.value() or b"")["step"] for task in rig.read(rig.topics.tasks("default")))


def stopped(rig: Rig) -> list[str]:
    """The nodes whose workers were told to stop."""
    return sorted(json.loads(stop.value() or b"")["node_id"] for stop in rig.read(rig.topics.attempt_control))


def answers(rig: Rig) -> dict[str, list[str]]:
    """What is recorded of each step's attempts; a late answer tells no more than its node."""
    rows = rig.attempts("t")
    steps = {row["node_id"]: row["step"] for row in rows if row["phase"] == "dispatched"}
    found: dict[str, list[str]] = {}
    for row in rows:
        found.setdefault(steps[row["node_id"]], []).append(row["phase"])
    return found


def begun(rig: Rig, worker: PlainWorker) -> dict[str, dict[str, Any]]:
    """The run has sent a step and a shielded one, and its owner knows that they arrived."""
    rig.start("t", workflow="tidy", input=None)
    tasks = taken(worker, "double", "keep")
    until(lambda: not rig.rows("select from eec_outbox where ns = {ns}"), what="both confirmed")
    return tasks


@pytest.mark.parametrize("owner", ["is killed", "stays"])
def test_after_a_cancel_only_cleanup_is_sent_and_what_is_shielded_counts(rig: Rig, owner: str) -> None:
    worker = rig.worker(silent)
    child = rig.child("after-cancel", instance=NAME) if owner == "is killed" else None
    if child is None:
        rig.coordinator()
    tasks = begun(rig, worker)
    order(rig, "t", "cancel")
    if child is not None:
        child.wait_dead()
        assert answers(rig) == {"double": ["dispatched"], "keep": ["dispatched"], "sweep": ["dispatched"]}
        assert (sent(rig), stopped(rig)) == ({"double": 1, "keep": 1}, []), "committed, and nobody was told"
        rig.coordinator(instance=NAME)
    tasks = taken(worker, "double", "keep", "sweep")
    until(lambda: stopped(rig) == [tasks["double"]["node_id"]], what="the worker told to stop")
    for step in ("double", "sweep"):
        finish(rig, tasks[step])
    answered = {"double": ["dispatched", "late"], "keep": ["dispatched"], "sweep": ["dispatched", "finished"]}
    until(lambda: answers(rig) == answered, within_ms=30_000, what="both answers recorded")
    assert rig.run("t")["status"] == "running", "what is shielded is waited for"
    finish(rig, tasks["keep"], output=6)
    rig.until_status("cancelled", "t")
    rig.check()
    assert answers(rig) == answered | {"keep": ["dispatched", "finished"]}
    view = decode_header(bytes(rig.run("t")["state"])).view
    assert msgspec.json.decode(view or b"null") == {"kept": 6}, "the cleanup has seen the result"
    assert sent(rig) == {"double": 1, "keep": 1, "sweep": 1}
    assert stopped(rig) == [tasks["double"]["node_id"]]


@pytest.mark.parametrize("owner", ["is killed", "stays"])
@pytest.mark.parametrize("during", ["its work", "its cleanup"])
def test_after_a_terminate_nothing_is_sent(rig: Rig, during: str, owner: str) -> None:
    """Not even cleanup, nor what that had still to do; whoever works for it is told to stop, and comes too late."""
    worker = rig.worker(silent)
    child = rig.child("after-terminate", instance=NAME) if owner == "is killed" else None
    if child is None:
        rig.coordinator()
    tasks = begun(rig, worker)
    if during == "its cleanup":
        order(rig, "t", "cancel")
        tasks = taken(worker, "double", "keep", "sweep")
        until(lambda: not rig.rows("select from eec_outbox where ns = {ns}"), what="the cleanup confirmed")
    order(rig, "t", "terminate")
    if child is not None:
        child.wait_dead()
        assert rig.run("t")["status"] == "terminated"
        rig.coordinator(instance=NAME)
    nodes = sorted(task["node_id"] for task in tasks.values())
    until(lambda: stopped(rig) == nodes, what="all that work for it told to stop")
    for task in tasks.values():
        finish(rig, task)
    late = {step: ["dispatched", "late"] for step in tasks}
    until(lambda: answers(rig) == late, within_ms=30_000, what="their answers recorded as late")
    rig.check()
    assert rig.run("t")["status"] == "terminated"
    assert sent(rig) == dict.fromkeys(tasks, 1), "nothing more, though their owner has sent all that it had"
