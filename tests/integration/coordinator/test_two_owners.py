"""Two owners for one partition on purpose: the old one commits nothing, not even an offset (R3; protocol 1 to 6)."""

from __future__ import annotations

import signal
import uuid
from collections.abc import Callable
from typing import Any

import pytest
from rig import Rig
from support import until
from tcp_proxy import TcpProxy, proxied

from ductor_stream.coordinator.service import Coordinator
from ductor_stream.errors import OwnershipLost
from ductor_stream.kafka.topics import cluster_id
from ductor_stream.ports import Batch, PartitionAdvance
from ductor_stream.store.postgres import PostgresStore


def everything(rig: Rig) -> list[dict[str, Any]]:
    """All that a commit of a batch could change, but for confirmations of the owner that lives, and for late results:
    what was redriven is answered twice, and the second answer may come at any time (R8)."""
    queries = (
        "select partition, epoch, token, offsets from eec_partition where ns = {ns} order by 1",
        "select run_id, record_version, status from eec_workflow_run where ns = {ns} order by 1",
        "select run_id, record_version, txid::text from eec_workflow_transition where ns = {ns} order by 1, 2",
        "select run_id, node_id, generation, phase from eec_workflow_step_attempt"
        + " where ns = {ns} and phase <> 'late' order by 1, 2, 3, 4",
    )
    return [row for query in queries for row in rig.rows(query)]


def test_a_frozen_owner_wakes_and_commits_nothing(rig: Rig) -> None:
    """R3, protocol 2, 5: expelled while frozen with a batch in hand; awake again it is fenced, and lets go."""
    ids = [f"r{n}" for n in range(6)]
    rig.worker()
    child = rig.child("freeze-before-commit")
    rig.start(*ids)
    child.until_said("freezes")
    standby = rig.coordinator(ready=False)
    until(lambda: standby.owned == {0, 1}, within_ms=30_000, what="the standby owning everything")
    rig.until_status("completed", *ids)
    rig.check()
    before = everything(rig)

    child.process.send_signal(signal.SIGCONT)
    child.until_said("fenced")
    child.until_said("lost [")
    rig.start("after")
    rig.until_status("completed", "after")
    rig.check()
    kept = [row for row in everything(rig) if row.get("run_id") in ids]
    assert kept == [row for row in before if row.get("run_id") in ids]
    ended = {(row["run_id"], row["node_id"], row["generation"]) for row in kept if row.get("phase") == "finished"}
    late = rig.rows(
        "select run_id, node_id, generation from eec_workflow_step_attempt where ns = {ns} and phase = 'late'"
    )
    assert {tuple(row.values()) for row in late} <= ended, "a late answer is of an attempt that had ended"


def test_an_owner_frozen_in_mid_transaction_is_ended(rig: Rig) -> None:
    """Protocol 6: its row locks do not stop the next owner, who ends its session."""
    ids = [f"r{n}" for n in range(6)]
    rig.worker()
    child = rig.child("freeze-in-transaction", instance="one")
    rig.start(*ids)
    child.until_said("freezes")
    holder = (
        "select pid from pg_stat_activity where state = 'idle in transaction' and datname = current_database()"
        " and starts_with(application_name, 'ductor-stream owner')"
    )
    assert len(rig.rows(holder)) == 1
    rig.coordinator(instance="one", ready=False)
    rig.until_status("completed", *ids)
    until(lambda: rig.rows(holder) == [], what="the end of the frozen session")
    rig.check()


def rival(rig: Rig) -> PostgresStore:
    """A store of the namespace without a coordinator."""
    store = PostgresStore(rig.database)
    store.namespace(rig.namespace, cluster_id(rig.admin), rig.partitions)
    return store


def test_a_late_raise_by_an_expelled_owner(rig: Rig) -> None:
    """Protocol 5: the owner that the group knows takes the partition back, and both settle."""
    rig.worker()
    running = rig.coordinator()
    rig.start("r", workflow="words", input=1)
    rig.until_status("running", "r")
    home, store = rig.home("r"), rival(rig)
    late = store.take(home, str(uuid.uuid4()))
    rig.signal("r", "on")
    rig.until_status("completed", "r")
    rig.check()
    assert running.count("ductor_ownership_lost") == 1
    assert running.owned == {0, 1}
    assert running.reasons() == []

    epochs = rig.rows("select epoch from eec_partition where ns = {ns} and partition = %s", home)
    assert epochs == [{"epoch": late.epoch + 1}]
    before = everything(rig)
    advance = PartitionAdvance(home, late.token, late.epoch, late.offsets, tuple(n + 1 for n in late.offsets), 0)
    with pytest.raises(OwnershipLost):
        store.commit(Batch(partitions=[advance]))
    store.close()
    assert everything(rig) == before


def commits_through(proxy: TcpProxy, hold: Callable[[], None], armed: list[bool]) -> Callable[[Coordinator], None]:
    """Once armed, the next commit of a run loses its request or its answer."""

    def prepare(coordinator: Coordinator) -> None:
        commit = coordinator.store.commit

        def wrapped(batch: Batch) -> int:
            if batch.runs and armed:
                armed.clear()
                hold()
            return commit(batch)

        coordinator.store.commit = wrapped  # type: ignore[method-assign]

    return prepare


@pytest.mark.parametrize("lost", ["answer", "request"])
def test_a_commit_of_unknown_outcome(rig: Rig, lost: str) -> None:
    """Protocol 3: never resubmitted; taken anew, so that what landed is redriven, and what did not is redone."""
    worker = rig.worker()
    with proxied(rig.database) as (proxy, url):
        armed: list[bool] = []
        hold = proxy.hold_answers if lost == "answer" else proxy.hold_requests
        running = rig.coordinator(database=url, prepare=commits_through(proxy, hold, armed))
        rig.start("r", workflow="order", input=2)
        finished = "select node_id from eec_workflow_step_attempt where ns = {ns} and phase = 'finished'"
        until(lambda: len(rig.rows(finished)) == 2, what="two steps done")
        version = rig.run("r")["record_version"]
        armed.append(True)
        rig.signal("r", "go", signal_id="s")
        until(lambda: not armed, what="the commit on its way")
        if lost == "answer":
            until(lambda: proxy.held_answers, what="the answer held back")
            assert rig.run("r")["record_version"] == version + 1
        proxy.cut()
        rig.until_status("completed", "r")
        rig.check()
        assert rig.run("r")["result"] == [0, 2, "go", 0, 2]
        assert running.count("ductor_outages", of="postgres") >= 1
        until(lambda: running.reasons() == [], what="readiness")
        assert set(worker.effects.values()) == {1}
        running.stop()
