"""Clocks that step by an hour, and half an hour of downtime (protocol 20 to 22): no timer early, twice or lost.

Postgres's clock is stepped where its readings enter the owner: the server of the tests has one clock for all.
"""

from __future__ import annotations

import time
from typing import Any

import msgspec
import pytest
from rig import Rig
from rig_worker import fence, silent
from support import until

from ductor_stream.coordinator.service import Coordinator

HOUR_MS = 3_600_000


class Skew:
    """Postgres's clock as one owner sees it, off by ``ms``; laid into its store by ``prepare``."""

    def __init__(self, ms: int = 0) -> None:
        self.ms = ms
        self._clock: Any = None
        self._ping: Any = None

    def __call__(self, coordinator: Coordinator) -> None:
        store: Any = coordinator.store
        commit, take, self._ping, self._clock = store.commit, store.take, store.ping, coordinator.clock

        def taken(partition: int, token: str) -> Any:
            found = take(partition, token)
            return msgspec.structs.replace(found, now=found.now + self.ms)

        store.commit = lambda batch: commit(batch) + self.ms
        store.take = taken
        store.ping = lambda: self._ping() + self.ms

    def step(self, ms: int) -> None:
        """Step to ``ms`` off; returns when the owner has seen it."""
        before, self.ms = self._clock.now(), self.ms + ms
        until(lambda: abs(self._clock.now() - before - ms) < HOUR_MS / 4, what="the step seen by the owner")


def beat(rig: Rig, task: dict[str, Any]) -> None:
    rig.send(rig.topics.attempt_results, task["run_id"], {"type": "attempt.heartbeat", **fence(task)})


def finish(rig: Rig, task: dict[str, Any]) -> None:
    result = {"type": "attempt.finished", **fence(task), "outcome": "completed", "output": 2}
    rig.send(rig.topics.attempt_results, task["run_id"], result)


def fired_once(rig: Rig, *run_ids: str) -> None:
    """Each nap has sent its one step once: had its timer fired twice, or been lost, it had not."""
    for run_id in run_ids:
        assert [row["phase"] for row in rig.attempts(run_id)] == ["dispatched", "finished"], run_id


@pytest.mark.parametrize("hours", [1, -1])
def test_the_owners_wall_clock_says_nothing(rig: Rig, monkeypatch: pytest.MonkeyPatch, hours: int) -> None:
    rig.coordinator()
    rig.worker()
    ids = [f"r{n}" for n in range(4)]
    rig.start(*ids, workflow="nap", input=1_000)
    rig.until_status("running", *ids)
    right = time.time
    monkeypatch.setattr(time, "time", lambda: right() + hours * 3_600)
    rig.until_status("completed", *ids)
    fired_once(rig, *ids)
    early = "select run_id from eec_workflow_run where ns = {ns} and closed_at < started_at + '1 s'"
    assert rig.rows(early) == []
    rig.check()


def test_postgres_clock_goes_an_hour_forth_and_back(rig: Rig) -> None:
    """What sleeps for less than the hour fires once; attempts that are alive are not given up, nor kept for ever."""
    skew = Skew()
    rig.coordinator(prepare=skew)
    worker = rig.worker(lambda task: None if task["run_id"] == "works" else {"outcome": "completed", "output": 2})
    rig.start("works", workflow="timed", input={"heartbeat": 30})
    rig.start("short", workflow="nap", input=HOUR_MS // 2)
    rig.start("long", workflow="nap", input=HOUR_MS * 2)
    (task,) = until(lambda: [each for each in worker.tasks if each["run_id"] == "works"], what="the task")
    beat(rig, task)
    until(lambda: rig.rows("select from eec_open_attempt where ns = {ns}"), what="the heartbeat recorded")
    skew.step(HOUR_MS)
    rig.until_status("completed", "short")
    rig.start("then", workflow="nap", input=100)
    rig.until_status("completed", "then")
    rig.start("turns", workflow="endless", input=[])
    rig.until_status("running", "turns")
    skew.step(-HOUR_MS)
    for word in (1, 2, 3, 4, 0):  # after three it continues as new, by the time that it has seen: not in an hour
        rig.signal("turns", str(word))
    rig.until_status("completed", "turns")
    rig.start("now", workflow="nap", input=100)
    rig.until_status("completed", "now")
    beat(rig, task)
    rig.until_status("running", "long", "works")
    finish(rig, task)
    rig.until_status("completed", "works")
    assert rig.run("works")["result"] == "result 2"
    fired_once(rig, "short", "then", "now", "works")
    assert rig.attempts("long") == []
    rig.check()


def test_a_sleep_of_twenty_years(rig: Rig) -> None:
    """Kept in Postgres to the millisecond, by whoever owns it; not fired an hour before, and once when it is due."""
    years_ms = 20 * 366 * 24 * HOUR_MS
    running = rig.coordinator()
    rig.worker()
    rig.start("slept", workflow="nap", input=years_ms)
    rig.until_status("running", "slept")
    kept = "select extract(epoch from wake_at - started_at) * 1000 as ms from eec_workflow_run where ns = {ns}"
    (row,) = until(lambda: [row for row in rig.rows(kept) if row["ms"] is not None], what="its moment kept")
    assert 0 <= row["ms"] - years_ms < 60_000
    running.stop()
    skew = Skew(years_ms - HOUR_MS)
    rig.coordinator(prepare=skew)
    rig.start("then", workflow="nap", input=100)
    rig.until_status("completed", "then")
    assert rig.run("slept")["status"] == "running"
    skew.step(HOUR_MS)
    rig.until_status("completed", "slept")
    fired_once(rig, "slept", "then")
    rig.check()


def test_half_an_hour_of_downtime(rig: Rig) -> None:
    """Protocol 21: what came due meanwhile fires once; whose result lies unread is not given up."""
    worker = rig.worker(silent)
    running = rig.coordinator()
    naps, steps = ["n0", "n1", "n2"], ["closes", "starts", "heard", "long"]
    rig.start(*naps, workflow="nap", input=60_000)
    for run_id, options in zip(
        steps,
        ({"schedule_to_close": 60}, {"schedule_to_start": 60}, {"heartbeat": 60}, {"timeout": 60, "heartbeat": 7_200}),
        strict=True,
    ):
        rig.start(run_id, workflow="timed", input=options)
    until(lambda: len(worker.tasks) == len(steps), what="all tasks taken")
    for task in [task for task in worker.tasks if task["run_id"] in ("heard", "long")]:
        beat(rig, task)
    until(lambda: len(rig.rows("select from eec_open_attempt where ns = {ns}")) == 2, what="the heartbeats recorded")
    running.stop()
    for task in list(worker.tasks):
        finish(rig, task)
    rig.coordinator(prepare=Skew(HOUR_MS // 2))
    rig.until_status("completed", *steps)
    assert [rig.run(run_id)["result"] for run_id in steps] == ["result 2"] * len(steps)
    until(lambda: len(worker.tasks) == len(steps) + len(naps), what="the tasks of the naps")
    for task in worker.tasks[len(steps) :]:
        finish(rig, task)
    rig.until_status("completed", *naps)
    fired_once(rig, *naps)
    rig.check()
