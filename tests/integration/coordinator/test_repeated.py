"""Everything is delivered several times and in any order, and counts once (R6, R8; issue 3, proof 5)."""

from __future__ import annotations

import random
from typing import Any

import pytest
from rig import Rig
from rig_worker import fence
from support import until

NODES = 6
"""Attempts of an order of two: four steps, of which two fail once."""


def moody(task: dict[str, Any]) -> dict[str, Any]:
    """The step ``double``, whose first attempt fails where its input is 1."""
    if task["input"] == [1] and task["attempt"] == 1:
        return {"outcome": "failed", "error": {"code": "user", "type": "Flaky", "message": "once"}}
    return {"outcome": "completed", "output": task["input"][0] * 2}


def outcomes(rig: Rig, *run_ids: str) -> list[dict[str, Any]]:
    """What runs came to, without their times and their late results."""
    published: dict[str, list[tuple[str, str]]] = {run_id: [] for run_id in run_ids}
    for message in rig.read(rig.topics.run_lifecycle):
        headers = {name: value.decode() for name, value in message.headers() or []}
        about = published.get((message.key() or b"").decode(), [])
        if headers["ce_type"] != "ductor.start.answered":  # which says again what has been said
            about.append((headers["ce_type"], headers["ce_id"].rpartition("/")[2]))
    found = []
    for run_id in run_ids:
        row, attempts = rig.run(run_id), [each for each in rig.attempts(run_id) if each["phase"] != "late"]
        found.append(
            {
                "status": row["status"],
                "result": row["result"],
                "attempts": {(a["node_id"], a["generation"], a["phase"], a["outcome"]) for a in attempts},
                "published": published[run_id],
            }
        )
    return found


@pytest.mark.parametrize("seed", [1, 2])
def test_three_times_and_shuffled_is_once_in_order(rig: Rig, seed: int) -> None:
    """R6, R8, proof 5: starts, signals and results, also those of superseded attempts."""
    chance = random.Random(seed)
    results: list[dict[str, Any]] = []
    start = {"type": "run.start", "workflow": "order", "input": 3}
    word = {"type": "run.signal", "name": "word", "payload": "go", "signal_id": "s"}

    def again() -> None:
        """A shuffled handful of everything that was ever sent for this run."""
        pool = [(rig.topics.run_events, start), (rig.topics.run_events, word)] * 3
        pool += [(rig.topics.attempt_results, each) for each in results] * 3
        chance.shuffle(pool)
        for topic, body in pool[: len(pool) // 2 + 1]:
            rig.send(topic, "often", body)

    def answer(task: dict[str, Any]) -> dict[str, Any]:
        told = moody(task)
        if task["run_id"] == "often":
            results.append({"type": "attempt.finished", **fence(task), **told})
            again()
        return told

    rig.coordinator()
    rig.worker(answer)
    rig.send(rig.topics.run_events, "once", start, word)
    rig.send(rig.topics.run_events, "often", word, word, start, start, word, start)
    rig.until_status("completed", "once", "often")
    again()
    rig.start("last")
    rig.until_status("completed", "last")
    rig.check()
    once, often = outcomes(rig, "once", "often")
    assert once["result"] == [0, 2, 4, "go", 0, 2, 4]
    assert once == often
    # A signal that comes again after the end is known by its id, a start by its run.
    assert often["published"] == [("ductor.run.started", "1"), ("ductor.run.completed", "2")]
    assert any(each["phase"] == "late" for each in rig.attempts("often"))


def test_everything_is_read_again_from_the_beginning(rig: Rig) -> None:
    """R6: offsets that went back (a restored backup) redeliver all input, with and without ids; nothing moves."""
    rig.worker(moody)
    running = rig.coordinator()
    ids = [f"r{n}" for n in range(6)]
    rig.start(*ids, workflow="order", input=2)
    for run_id in ids:
        rig.signal(run_id, "no id of its own")
    rig.until_status("completed", *ids)
    before = outcomes(rig, *ids)
    rows = "select run_id, record_version, updated_at from eec_workflow_run where ns = {ns} order by 1"
    versions = rig.rows(rows)
    running.stop()

    rig.rows("update eec_partition set offsets = '{0,0,0}' where ns = {ns}")
    running = rig.coordinator()
    rig.start("after")
    rig.until_status("completed", "after")
    until(lambda: running.count("ductor_duplicate_inputs", kind="signal") == len(ids), what="signals known again")
    rig.check()
    assert outcomes(rig, *ids) == before
    assert [row for row in rig.rows(rows) if row["run_id"] != "after"] == versions
    assert running.count("ductor_late_results") == len(ids) * NODES
