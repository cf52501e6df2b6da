"""A task that is gone from its topic before any worker read it is sent again, and none that merely waits (R9, protocol 15)."""

from __future__ import annotations

import json
from collections import Counter

import pytest
from click.testing import CliRunner
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient
from rig import Rig, Running
from rig_worker import silent
from support import until

from ductor_stream.cli.runs import runs

ALERT = {"sweep_s": 0.2, "lost_after_ms": 0, "watch_s": 600.0}
"""The topics are looked at five times a second; runs only where a topic has told of a loss."""


def dispatched(rig: Rig, *run_ids: str) -> None:
    """Start runs and wait until their first steps are on the topic."""
    rig.start(*run_ids, workflow="chain", input=1)
    lines = "select run_id from eec_workflow_step_attempt where ns = {ns} and phase = 'dispatched'"
    until(lambda: {row["run_id"] for row in rig.rows(lines)} >= set(run_ids), what="all dispatched")
    until(lambda: not rig.rows("select seq from eec_outbox where ns = {ns}"), what="all of it confirmed")


def delete_tasks(rig: Rig) -> int:
    """As retention does: everything that is in the task topic now is gone. Returns how many records that were."""
    topic = rig.topics.tasks("default")
    there = len(rig.read(topic))
    admin = AdminClient({"bootstrap.servers": rig.bootstrap})
    count = len(admin.list_topics(topic, 10).topics[topic].partitions)
    places = [TopicPartition(topic, number, -1) for number in range(count)]
    for future in admin.delete_records(places).values():
        future.result(10)
    return there


def why(rig: Rig, run_id: str) -> str:
    """Why the run waits, in the words of ``runs show``."""
    options = ["--database", rig.database, "--kafka", rig.bootstrap, "--namespace", rig.namespace, "--json"]
    said = CliRunner().invoke(runs, ["show", run_id, *options], catch_exceptions=False)
    return str(json.loads(said.output)["waiting_for"])


def redriven(running: Running) -> float:
    """How many attempts were found lost."""
    return running.metrics.lost_dispatches["redriven"]._value.get()  # type: ignore[attr-defined]


def test_tasks_that_retention_deleted_are_sent_again(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    """R9: the owner notices by the topic's own offsets; the attempt is the same one, so its key is too (R7)."""
    running = rig.coordinator(rig.fast(**ALERT))
    runs = [f"r{n}" for n in range(8)]
    dispatched(rig, *runs)
    assert delete_tasks(rig) == 8
    until(lambda: redriven(running) == 8, what="all found lost")
    worker = rig.worker()
    rig.until_status("completed", *runs)
    first = [task for task in worker.tasks if task["node_id"] == "1"]
    assert {(task["run_id"], task["generation"], task["attempt"]) for task in first} == {(r, 1, 1) for r in runs}
    assert len(first) == 8
    lines = [vars(record)["ductor"] for record in caplog.records if "a task was lost" in record.message]
    assert {(line["run_id"], line["node_id"], line["generation"]) for line in lines} == {(r, "1", 1) for r in runs}
    again = [told for told in rig.told() if told.type == "run.redriven"]
    assert sorted(told.run_id for told in again) == runs
    assert {told.data["reason"] for told in again} == {
        "the task of step double, attempt 1 (node 1), was lost unread: sent again, redrive 1"
    }
    rig.check()


def test_what_waits_for_a_worker_collects_no_duplicates(rig: Rig) -> None:
    """Protocol 15: a queue without workers, looked at again and again, and one whose first tasks only were lost."""
    running = rig.coordinator(rig.fast(**ALERT | {"watch_s": 0.2}))
    lost, waiting = [f"l{n}" for n in range(4)], [f"w{n}" for n in range(4)]
    dispatched(rig, *lost)
    delete_tasks(rig)
    dispatched(rig, *waiting)
    rig.start("later", workflow="nap", input=2_000)
    lines = "select run_id from eec_workflow_step_attempt where ns = {ns} and run_id = 'later'"
    until(lambda: rig.rows(lines), what="many looks")
    assert running.count("ductor_runs_loaded") > 0
    assert redriven(running) <= 4, "what waits is not lost; what was lost is, as soon as its queue moves on"
    worker = rig.worker()
    rig.until_status("completed", *lost, *waiting, "later")
    assert redriven(running) == 4
    done = Counter(task["run_id"] for task in worker.tasks if task["node_id"] == "1")
    assert done == dict.fromkeys([*lost, *waiting], 1)
    rig.check()


def test_a_task_that_a_worker_took_and_forgot(rig: Rig) -> None:
    """R9: committed and never heard of again, by a worker that keeps to no rule; found by the look at all runs."""
    running = rig.coordinator(rig.fast(**ALERT | {"watch_s": 0.5}))
    forgetful = rig.worker(silent)
    rig.start("r", workflow="chain", input=1)
    until(lambda: forgetful.tasks, what="the task taken")
    forgetful.close()
    until(lambda: redriven(running) >= 1, what="the loss found")
    rig.worker()
    rig.until_status("completed", "r")
    rig.check()


def test_the_loss_outlives_its_owner(rig: Rig) -> None:
    """R9: who takes the partition afterwards finds it too, since what it needs is in the run and in the topic."""
    first = rig.coordinator(rig.fast(**ALERT))
    dispatched(rig, "r")
    first.stop()
    delete_tasks(rig)
    second = rig.coordinator(rig.fast(**ALERT))
    rig.worker()
    rig.until_status("completed", "r")
    assert redriven(second) == 1
    rig.check()


@pytest.mark.moves("ductor_lost_dispatches")
def test_a_task_that_is_lost_each_time_fails_with_the_reason(rig: Rig) -> None:
    """R9: a bounded number of redrives, then an explained failure that ``runs retry`` can undo."""
    running = rig.coordinator(rig.fast(**ALERT | {"redrives": 1}))
    dispatched(rig, "r")
    delete_tasks(rig)
    until(lambda: redriven(running) == 1, what="the first redrive")
    until(lambda: not rig.rows("select seq from eec_outbox where ns = {ns}"), what="it is confirmed")
    until(lambda: "sent again at 20" in why(rig, "r"), what="what `runs show` tells of it")
    assert "(redrive 1: its task was lost unread)" in why(rig, "r")
    delete_tasks(rig)
    rig.until_status("failed", "r")
    error = rig.run("r")["error"]
    assert error["code"] == "dispatch_lost"
    assert "its task was sent 2 times, and each time nobody began it" in error["message"], json.dumps(error)
    rig.worker()
    rig.send(rig.topics.run_events, "r", {"type": "run.retry", "run_id": "r", "command_id": "again"})
    rig.until_status("completed", "r")
    rig.check()
