"""Durable timers, and attempts that are given up, over crashes and downtime (R5, R9; protocol 20 to 22)."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from rig import CRC32, HOME, Rig
from rig_worker import fence, silent
from support import until

from ductor_stream.coordinator.service import Coordinator
from ductor_stream.engine import definition


def test_a_sleep_fires_once_after_its_owner_was_killed(rig: Rig) -> None:
    """R5, R6, protocol 20: at the new owner, not early by Postgres's clock, and once."""
    ids = [f"r{n}" for n in range(5)]
    worker = rig.worker()
    child = rig.child(instance="one")
    rig.start(*ids, workflow="nap", input=2_000)
    rig.until_status("running", *ids)
    child.kill()
    assert worker.tasks == []
    rig.coordinator(instance="one")
    rig.until_status("completed", *ids)
    rig.check()
    early = rig.rows(
        "select r.run_id from eec_workflow_run r join eec_workflow_step_attempt a using (ns, run_id)"
        " where ns = {ns} and a.phase = 'dispatched' and a.at < r.started_at + '2 s'"
    )
    assert early == []
    assert len(worker.tasks) == len(ids)


def beating(rig: Rig) -> Callable[[dict[str, Any]], None]:
    """A worker that says once that it has begun, and then nothing more."""

    def answer(task: dict[str, Any]) -> None:
        rig.send(rig.topics.attempt_results, task["run_id"], {"type": "attempt.heartbeat", **fence(task)})

    return answer


GIVEN_UP: dict[str, tuple[dict[str, float], bool, str]] = {
    "unstarted": ({"schedule_to_start": 0.3}, False, "timeout_schedule_to_start"),
    "unclosed": ({"schedule_to_close": 0.3}, False, "timeout_schedule_to_close"),
    "started": (
        {"schedule_to_start": 0.3, "schedule_to_close": 0.9, "heartbeat": 30},
        True,
        "timeout_schedule_to_close",
    ),
    "long": ({"timeout": 0.3}, True, "timeout_start_to_close"),
    "silent": ({"heartbeat": 0.3}, True, "heartbeat_lost"),
    "dead": ({}, True, "worker_lost"),
}
"""By run id: the step's options, whether its attempt is heard of, and how it ends."""


def test_attempts_are_given_up(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """R9, protocol 22: by each of its deadlines; the worker is told to stop, and its late result changes nothing."""
    monkeypatch.setattr(definition, "WORKER_HEARTBEAT_MS", 400)
    beat = beating(rig)
    rig.coordinator()
    worker = rig.worker(lambda task: beat(task) if GIVEN_UP[task["run_id"]][1] else None)
    for run_id, (options, _, _) in GIVEN_UP.items():
        rig.start(run_id, workflow="timed", input=options)
    rig.until_status("completed", *GIVEN_UP)
    until(lambda: len(worker.tasks) == len(GIVEN_UP), what="all tasks")
    for task in worker.tasks:
        result = {"type": "attempt.finished", **fence(task), "outcome": "completed", "output": 2}
        rig.send(rig.topics.attempt_results, task["run_id"], result)
    phases = ["dispatched", "finished", "late"]
    until(lambda: all([row["phase"] for row in rig.attempts(r)] == phases for r in GIVEN_UP), what="late results")
    assert {r: rig.run(r)["result"] for r in GIVEN_UP} == {r: code for r, (_, _, code) in GIVEN_UP.items()}
    stops = [json.loads(message.value() or b"") for message in rig.read(rig.topics.attempt_control)]
    assert sorted(stop["run_id"] for stop in stops) == sorted(GIVEN_UP)
    for stop in stops:
        (task,) = [task for task in worker.tasks if task["run_id"] == stop["run_id"]]
        assert stop == {"type": "attempt.stop", **fence(task), "reason": GIVEN_UP[stop["run_id"]][2]}
    rig.check()


def test_heartbeats_keep_an_attempt_alive(rig: Rig) -> None:
    """Protocol 22: for longer than its heartbeat time-out."""
    rig.coordinator()
    worker = rig.worker(beating(rig))
    rig.start("r", workflow="timed", input={"heartbeat": 0.6})
    (task,) = until(lambda: list(worker.tasks), what="the task")
    beats = "select beat_at > heard_at + '1500 ms' as enough from eec_open_attempt where ns = {ns}"

    def enough() -> bool:
        rig.send(rig.topics.attempt_results, "r", {"type": "attempt.heartbeat", **fence(task)})
        return any(row["enough"] for row in rig.rows(beats))

    until(enough, what="1.5 s of heartbeats")
    result = {"type": "attempt.finished", **fence(task), "outcome": "completed", "output": 2}
    rig.send(rig.topics.attempt_results, "r", result)
    rig.until_status("completed", "r")
    assert rig.run("r")["result"] == "result 2"
    rig.check()


@pytest.mark.parametrize("owner", ["stays", "changes"])
def test_what_the_last_heartbeat_said_reaches_the_next_attempt(rig: Rig, owner: str) -> None:
    """Its silence is noticed long before its start-to-close; what it had said is in Postgres, for whoever owns the run."""
    running = rig.coordinator()
    worker = rig.worker(silent)
    rig.start("r", workflow="stubborn", input=None)
    (task,) = until(lambda: list(worker.tasks), what="the task")
    assert task["heartbeat_details"] is None
    for page in (1, 17):
        beat = {"type": "attempt.heartbeat", **fence(task), "details": {"page": page}}
        rig.send(rig.topics.attempt_results, "r", beat)
    said = "select convert_from(details, 'utf8') as said from eec_open_attempt where ns = {ns}"
    until(lambda: [json.loads(row["said"]) for row in rig.rows(said)] == [{"page": 17}], what="it recorded")
    if owner == "changes":
        running.stop()
        rig.coordinator()
    again = until(lambda: worker.tasks[1:], what="the next attempt")[0]
    assert (again["attempt"], again["generation"]) == (2, 2)
    assert again["heartbeat_details"] == {"page": 17}
    result = {"type": "attempt.finished", **fence(again), "outcome": "completed", "output": 2}
    rig.send(rig.topics.attempt_results, "r", result)
    rig.until_status("completed", "r")
    rig.check()


@pytest.mark.parametrize("partitioner", [HOME, CRC32])
def test_time_outs_wait_for_results_that_lie_unread(rig: Rig, partitioner: str) -> None:
    """Protocol 21, R12: the deadline passed while nobody was there, and so did the result come, on any partition."""
    ids = [f"r{n}" for n in range(8)]
    worker = rig.worker(silent)
    running = rig.coordinator()
    rig.start(*ids[:4], workflow="timed", input={"schedule_to_close": 1.0})
    rig.start(*ids[4:], workflow="timed", input={"schedule_to_start": 1.0})
    until(lambda: len(worker.tasks) == len(ids), what="all tasks taken")
    running.stop()
    overdue = "select 1 from eec_workflow_run where ns = {ns} and clock_timestamp() < wake_at + '200 ms'"
    until(lambda: not rig.rows(overdue), what="the deadlines passed")
    for task in worker.tasks:
        result = {"type": "attempt.finished", **fence(task), "outcome": "completed", "output": 2}
        rig.send(rig.topics.attempt_results, task["run_id"], result, partitioner=partitioner)
    rig.coordinator()
    rig.until_status("completed", *ids)
    assert [rig.run(run_id)["result"] for run_id in ids] == ["result 2"] * len(ids)
    rig.check()


def test_the_clocks_of_attempts_start_anew_with_a_new_owner(rig: Rig) -> None:
    """Protocol 22: a time-out of heartbeats that passed while nobody listened is none."""
    running = rig.coordinator()
    worker = rig.worker(beating(rig))
    rig.start("r", workflow="timed", input={"heartbeat": 1.0})
    until(lambda: rig.rows("select from eec_open_attempt where ns = {ns}"), what="a heartbeat recorded")
    running.stop()
    silence = "select from eec_open_attempt where ns = {ns} and clock_timestamp() > beat_at + '1200 ms'"
    until(lambda: rig.rows(silence), what="more silence than is allowed")
    rig.coordinator()
    (task,) = worker.tasks
    rig.send(
        rig.topics.attempt_results,
        "r",
        {"type": "attempt.finished", **fence(task), "outcome": "completed", "output": 2},
    )
    rig.until_status("completed", "r")
    assert rig.run("r")["result"] == "result 2"
    rig.check()


def test_the_timeout_that_a_workflow_declares(rig: Rig) -> None:
    """R9: it holds for a start that names its version as well, and a start's own wins."""
    rig.coordinator()
    rig.start("last", workflow="hasty", input=None)
    rig.start("named", workflow="hasty", input=None, version="1")
    rig.start("patient", workflow="hasty", input=None, version="1", run_timeout_ms=600_000)
    rig.until_status("timed_out", "last", "named")
    assert rig.run("patient")["status"] == "running"
    rig.check()


def test_what_was_sent_before_a_timer_of_a_downtime_is_heard_before_it(rig: Rig) -> None:
    """Protocol 21: a cancel, so that the step behind the sleep never begins, and the word that is waited for."""
    cancelled, waiting, late = [f"c{n}" for n in range(4)], [f"w{n}" for n in range(4)], ["late"]
    worker = rig.worker()
    running = rig.coordinator()
    rig.start(*cancelled, workflow="nap", input=1_500)
    rig.start(*waiting, *late, workflow="patient", input=[1.5])
    rig.until_status("running", *cancelled, *waiting, *late)
    running.stop()
    for run_id in cancelled:
        rig.send(rig.topics.run_events, run_id, {"type": "run.cancel", "run_id": run_id, "reason": "changed my mind"})
    for run_id in waiting:
        rig.signal(run_id, "in time")
    overdue = "select 1 from eec_workflow_run where ns = {ns} and clock_timestamp() < wake_at + '200 ms'"
    until(lambda: not rig.rows(overdue), what="the timers are due")
    rig.coordinator()
    rig.until_status("cancelled", *cancelled)
    for run_id in [*waiting, *late]:
        rig.signal(run_id, "end")
    rig.until_status("completed", *waiting, *late)
    assert [rig.run(run_id)["result"] for run_id in waiting] == [["in time"]] * len(waiting)
    assert rig.run("late")["result"] == ["-"]
    assert worker.tasks == []
    rig.check()


def test_timers_begin_though_what_came_before_cannot_be_read_in_time(rig: Rig) -> None:
    """R9: behind a backlog that takes long they wait for a bounded time, and other inputs are no longer waited for."""
    rig.worker()
    running = rig.coordinator()
    rig.start("r", workflow="nap", input=500)
    rig.until_status("running", "r")
    running.stop()
    until(lambda: not rig.rows("select 1 from eec_workflow_run where ns = {ns} and clock_timestamp() < wake_at"))

    def never_reads(coordinator: Coordinator) -> None:
        ends = coordinator.log.end_offsets
        coordinator.log.end_offsets = lambda p: {topic: end + 1_000 for topic, end in ends(p).items()}  # type: ignore[method-assign]

    rig.coordinator(rig.fast(overdue_wait_s=1.0), prepare=never_reads)
    rig.until_status("completed", "r")
    rig.check()
