"""Two owners for one partition on purpose: the old one commits nothing, not even an offset (R3; protocol 1 to 6)."""

from __future__ import annotations

import signal
import uuid
from collections import Counter
from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
from rig import Rig
from support import until
from tcp_proxy import TcpProxy, proxied

from ductor_stream.coordinator.service import Coordinator
from ductor_stream.engine.events import RunStarted
from ductor_stream.engine.state import decode_records
from ductor_stream.errors import OwnershipLost
from ductor_stream.kafka.topics import cluster_id
from ductor_stream.ports import Batch, PartitionAdvance
from ductor_stream.store.postgres import PostgresStore

PARTITIONS = "select partition, epoch, token, offsets from eec_partition where ns = {ns} order by 1"


def everything(rig: Rig) -> list[dict[str, Any]]:
    """All that a commit of a batch could change, but for confirmations of the owner that lives, and for late results:
    what was redriven is answered twice, and the second answer may come at any time (R8)."""
    queries = (
        PARTITIONS,
        "select run_id, record_version, status from eec_workflow_run where ns = {ns} order by 1",
        "select run_id, record_version, txid::text from eec_workflow_transition where ns = {ns} order by 1, 2",
        "select run_id, node_id, generation, phase from eec_workflow_step_attempt"
        + " where ns = {ns} and phase <> 'late' order by 1, 2, 3, 4",
    )
    return [row for query in queries for row in rig.rows(query)]


def all_is_applied(rig: Rig) -> bool:
    """Whether the rows of the partitions have all that stands in the inbound topics: as long as nothing comes they stay."""
    inbound = (rig.topics.run_events, rig.topics.attempt_results, rig.topics.wakeups)
    there = Counter((topic, each.partition()) for topic in inbound for each in rig.read(topic))
    for row in rig.rows(PARTITIONS):
        assert [max(n, 0) for n in row["offsets"]] == [there[topic, row["partition"]] for topic in inbound], row
    return True


def test_a_frozen_owner_wakes_and_commits_nothing(rig: Rig) -> None:
    """R3, protocol 2, 5: expelled while frozen with a batch in hand; awake again it is fenced, and lets go."""
    ids = [f"r{n}" for n in range(6)]
    worker = rig.worker()
    child = rig.child("freeze-before-commit")
    rig.start(*ids)
    child.until_said("freezes freeze-before-commit")
    expelled = {row["token"] for row in rig.rows(PARTITIONS)}
    standby = rig.coordinator(ready=False)
    until(lambda: standby.owned == {0, 1}, within_ms=30_000, what="the standby owning everything")
    rig.until_status("completed", *ids)
    rig.check()
    worker.close()  # what was redriven is not answered just now
    until(lambda: all_is_applied(rig), what="nothing left to apply")
    before = everything(rig)

    child.process.send_signal(signal.SIGCONT)
    child.until_said("freezes refused")
    assert everything(rig) == before, "of the partitions too, not even an offset"
    child.process.send_signal(signal.SIGCONT)
    child.until_said("fenced")
    child.until_said("lost [")
    rig.worker()
    rig.start("after")
    rig.until_status("completed", "after")
    rig.check()
    assert expelled.isdisjoint(row["token"] for row in rig.rows(PARTITIONS)), "what it takes it takes anew"
    kept = [row for row in everything(rig) if row.get("run_id") in ids]
    assert kept == [row for row in before if row.get("run_id") in ids]
    ended = {(row["run_id"], row["node_id"], row["generation"]) for row in kept if row.get("phase") == "finished"}
    late = rig.rows(
        "select run_id, node_id, generation from eec_workflow_step_attempt where ns = {ns} and phase = 'late'"
    )
    assert {tuple(row.values()) for row in late} <= ended, "a late answer is of an attempt that had ended"


def test_two_owners_start_one_record_once(rig: Rig) -> None:
    """R3, R6: both have taken the same starts into a batch; the one that wakes neither begins a run nor tells of one."""
    ids = [f"r{n}" for n in range(6)]
    worker = rig.worker()
    child = rig.child("freeze-with-a-start")
    rig.start(*ids, workflow="chain", input=2)
    child.until_said("freezes")
    assert rig.rows("select run_id from eec_workflow_run where ns = {ns}") == []
    standby = rig.coordinator(ready=False)
    until(lambda: standby.owned == {0, 1}, within_ms=30_000, what="the standby owning everything")
    rig.until_status("completed", *ids)
    rig.check()

    child.process.send_signal(signal.SIGCONT)
    child.until_said("fenced")
    rig.start("after", workflow="chain", input=2)
    rig.until_status("completed", "after")
    rig.check()
    assert begun(rig) == dict.fromkeys([*ids, "after"], 1)
    told = Counter(told.run_id for told in rig.told() if told.type == "run.started")
    assert {run_id: told[run_id] for run_id in ids} == dict.fromkeys(ids, 1), "each record is there once"
    tasks = Counter((task["run_id"], task["node_id"], task["generation"]) for task in worker.tasks)
    assert {task: n for task, n in tasks.items() if task[0] in ids} == dict.fromkeys(product(ids, "12", (1,)), 1)


def begun(rig: Rig) -> dict[str, int]:
    """How many starts the history of each run has."""
    rows = rig.rows("select run_id, records from eec_workflow_transition where ns = {ns}")
    records = ((row["run_id"], record) for row in rows for record in decode_records(bytes(row["records"])))
    return Counter(run_id for run_id, record in records if isinstance(record.event, RunStarted))


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
        finished = "select run_id from eec_workflow_step_attempt where ns = {ns} and phase = 'finished'"

        def two_steps_done(run_id: str) -> None:
            rig.start(run_id, workflow="order", input=2)
            until(lambda: rig.rows(finished).count({"run_id": run_id}) == 2, what="two steps done")

        two_steps_done("before")  # its commits prepare the statements, so that the one answer held back is a commit's
        rig.signal("before", "go", signal_id="s")
        rig.until_status("completed", "before")
        two_steps_done("r")
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
