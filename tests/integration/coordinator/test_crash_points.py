"""A coordinator is killed between every two steps of a batch, and another one goes on (R5; protocol 1, 3, 10, 11)."""

from __future__ import annotations

from typing import Any

import msgspec
import psycopg
import pytest
from coordinator_child import POINTS
from rig import Rig
from support import until

from ductor_stream.ports import Outgoing

NAME = "coordinator-1"
"""Killed processes come back under their stable name: then nobody waits for the session of the dead one."""

PARTITIONS = 2


def unconfirmed(rig: Rig) -> list[list[Outgoing]]:
    """The records of each outbox row."""
    rows = rig.rows("select records from eec_outbox where ns = {ns}")
    return [msgspec.msgpack.decode(bytes(row["records"]), type=list[Outgoing]) for row in rows]


def effects(rig: Rig, run_id: str, nodes: int) -> set[str]:
    """Idempotency keys of a run's finished steps, from Postgres."""
    found = {
        f"{rig.namespace}/{run_id}/{row['execution']}/{row['node_id']}"
        for row in rig.attempts(run_id)
        if row["phase"] == "finished" and row["outcome"] == "completed"
    }
    assert len(found) == nodes
    return found


@pytest.mark.parametrize("point", POINTS)
def test_killed_at(rig: Rig, point: str) -> None:
    """R5: no event and no dispatch is lost, and what is redriven was in flight."""
    ids = [f"r{n}" for n in range(12)]
    worker = rig.worker()
    child = rig.child(point, instance=NAME)
    for run_id in ids:
        rig.start(run_id, workflow="order", input=2)
        rig.signal(run_id, f"for {run_id}", signal_id="go")
    child.wait_dead()
    assert child.said(f"dies {point}")
    in_flight = unconfirmed(rig)

    running = rig.coordinator(instance=NAME)
    rig.until_status("completed", *ids)
    rig.check()
    for run_id in ids:
        assert rig.run(run_id)["result"] == [0, 2, f"for {run_id}", 0, 2]
        assert all(worker.effects[key] >= 1 for key in effects(rig, run_id, 4))
    assert running.count("ductor_redrives") <= sum(map(len, in_flight))
    assert len(in_flight) <= 3 * PARTITIONS, "more than a batch or two was in flight"
    assert rig.letters() == []


def blocked(rig: Rig) -> list[dict[str, Any]]:
    """Owners' sessions that wait for a lock, inside their commit."""
    return rig.rows(
        "select pid from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'"
        " and starts_with(application_name, 'ductor-stream owner')"
    )


def epoch(rig: Rig, run_id: str) -> int:
    """How often the partition of a run was taken."""
    found = rig.rows("select epoch from eec_partition where ns = {ns} and partition = %s", rig.home(run_id))
    return int(found[0]["epoch"])


@pytest.mark.parametrize("lands", ["before the next owner", "never"])
def test_killed_inside_the_transaction(rig: Rig, lands: str) -> None:
    """R5, protocol 3, 6: the statement was sent, its sender is dead; it may land or not, the run goes on once."""
    worker = rig.worker()
    child = rig.child(instance=NAME)
    rig.start("r", workflow="order", input=2)
    until(lambda: len([a for a in rig.attempts("r") if a["phase"] == "finished"]) == 2, what="two steps done")
    with psycopg.connect(rig.database) as other:
        other.execute("select from eec_workflow_run where run_id = 'r' for update")
        rig.signal("r", "go")
        until(lambda: blocked(rig), what="the commit waiting for the row")
        child.kill()
        if lands == "before the next owner":
            other.rollback()
        rig.coordinator(instance=NAME, ready=lands != "never")
        until(lambda: epoch(rig, "r") == 2, within_ms=20_000, what="the partition taken from the dead owner's session")
        other.rollback()
    rig.until_status("completed", "r")
    rig.check()
    assert rig.run("r")["result"] == [0, 2, "go", 0, 2]
    assert all(worker.effects[key] >= 1 for key in effects(rig, "r", 4))


def test_without_a_stable_name(rig: Rig) -> None:
    """R5: the group gives the dead owner's partitions away when its session has ended; a second one stands by."""
    ids = [f"r{n}" for n in range(10)]
    rig.worker()
    child = rig.child()
    standby = rig.coordinator(ready=False)
    rig.start(*ids, workflow="nap", input=3_000)
    rig.until_status("running", *ids)
    child.kill()
    until(lambda: standby.owned == {0, 1}, within_ms=30_000, what="the standby owning everything")
    rig.until_status("completed", *ids)
    rig.check()
