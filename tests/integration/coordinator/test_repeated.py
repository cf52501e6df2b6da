"""Everything is delivered several times and in any order, and counts once (R6, R8)."""

from __future__ import annotations

import json
import random
from collections import Counter
from typing import Any

import msgspec
import pytest
from rig import Rig
from rig_worker import fence
from support import until

from ductor_stream.engine.state import decode_header
from ductor_stream.store.reader import RunReader

NODES = 6
"""Attempts of an order of two: four steps, of which two fail once."""

ATTEMPTS = 8
"""Those of an order of three."""


def moody(task: dict[str, Any]) -> dict[str, Any]:
    """The step ``double``, whose first attempt fails where its input is 1."""
    if task["input"] == [1] and task["attempt"] == 1:
        return {"outcome": "failed", "error": {"code": "user", "type": "Flaky", "message": "once"}}
    return {"outcome": "completed", "output": task["input"][0] * 2}


def outcomes(rig: Rig, *run_ids: str) -> list[dict[str, Any]]:
    """What runs came to, without their times and their late results."""
    published: dict[str, list[tuple[str, str]]] = {run_id: [] for run_id in run_ids}
    for told in rig.told():
        if told.type != "start.answered":  # which says again what has been said
            published.get(told.run_id, []).append((told.type, told.id.rpartition("/")[2]))
    found = []
    for run_id in run_ids:
        row, attempts = rig.run(run_id), [each for each in rig.attempts(run_id) if each["phase"] != "late"]
        found.append(
            {
                "status": row["status"],
                "result": row["result"],
                "attempts": Counter((a["node_id"], a["generation"], a["phase"], a["outcome"]) for a in attempts),
                "published": published[run_id],
            }
        )
    return found


def state(rig: Rig, run_id: str) -> dict[str, Any]:
    """All that the run's row holds of its state, but for its name and the times."""
    header = msgspec.structs.asdict(decode_header(bytes(rig.run(run_id)["state"])))
    return {name: value for name, value in header.items() if name not in ("run_id", "now", "started_at", "began_at")}


def applied(rig: Rig, run_id: str) -> Counter[Any]:
    """The events that its history holds, whatever their order and how they were batched."""
    with RunReader(rig.database, rig.namespace) as reader:
        records = [record for entry in reader.history(run_id) for record in entry.records]
    about = ("execution", "node_id", "generation", "outcome", "output", "signal_id")
    return Counter(
        (type(each.event).__name__, *(getattr(each.event, name, None) for name in about)) for each in records
    )


@pytest.mark.parametrize("seed", [1, 2])
def test_three_times_and_shuffled_is_once_in_order(rig: Rig, seed: int) -> None:
    """R6, R8: starts, signals and results, also those of superseded attempts."""
    chance = random.Random(seed)
    results: list[dict[str, Any]] = []
    sent: Counter[str] = Counter()
    start = {"type": "run.start", "workflow": "order", "input": 3}
    word = {"type": "run.signal", "name": "word", "payload": "go", "signal_id": "s"}

    def send(*bodies: dict[str, Any]) -> None:
        for body in bodies:
            topic = rig.topics.attempt_results if body in results else rig.topics.run_events
            rig.send(topic, "often", body)
            sent[json.dumps(body)] += 1

    def again(*new: dict[str, Any]) -> None:
        """A shuffled handful of everything that was ever sent for this run; what is ``new`` three times among it."""
        pool = [start, word, *results] * 3
        chance.shuffle(pool)
        pool = [*pool[: len(pool) // 2 + 1], *new, *new, *new]
        chance.shuffle(pool)
        send(*pool)

    def answer(task: dict[str, Any]) -> dict[str, Any]:
        told = moody(task)
        if task["run_id"] == "often":
            results.append({"type": "attempt.finished", **fence(task), **told})
            again(results[-1])
        return told

    rig.coordinator()
    rig.worker(answer)
    rig.send(rig.topics.run_events, "once", start, word)
    first = [word, start] * 3
    chance.shuffle(first)
    send(*first)
    rig.until_status("completed", "once", "often")
    again()
    rig.start("last")
    rig.until_status("completed", "last")
    rig.check()
    assert len(results) == ATTEMPTS
    assert len(sent) == 2 + ATTEMPTS, "start, signal, and each result"
    assert min(sent.values()) >= 3, sent
    once, often = outcomes(rig, "once", "often")
    assert once["result"] == [0, 2, 4, "go", 0, 2, 4]
    assert once == often
    assert state(rig, "once") == state(rig, "often")
    assert applied(rig, "once") == applied(rig, "often")
    # A signal that comes again after the end is known by its id, a start by its run.
    assert often["published"] == [("run.started", "1"), ("run.completed", "2")]
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
