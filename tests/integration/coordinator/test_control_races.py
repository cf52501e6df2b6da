"""Each command lies in the log beside what its run waits for, and nobody has read either.

What the engine makes of each order is in ``tests/unit/engine/test_control_races.py``; here real topics and rows decide it.
Other states than waiting for a step, a timer or a signal: ``test_control_states.py``.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from rig import Rig
from rig_control import KINDS, cells, commits, ended, finish, order, phases
from rig_worker import doubled, silent
from support import until

from ductor_stream.coordinator.service import Coordinator
from ductor_stream.ports import Received

# How it ends, and in which execution. Results and timers come by other ways than commands, so that either may be first:
# their runs have a step left to do, that nobody does until all commands are obeyed. Signals come by the same topic.
ENDINGS = """
                  cancel       terminate     pause        resume       retry        reset
    step          cancelled/1  terminated/1  completed/1  completed/1  completed/1  completed/2
    timer         cancelled/1  terminated/1  completed/1  completed/1  completed/1  completed/2
    command-first cancelled/1  terminated/1  completed/1  completed/1  completed/1  completed/2
    signal-first  completed/1  completed/1   completed/1  completed/1  completed/1  completed/2
"""
STARTS: dict[str, tuple[str, Any]] = {
    "step": ("chain", 2),
    "timer": ("nap", 700),
    "command-first": ("words", 1),
    "signal-first": ("words", 1),
}


def test_a_paused_run_records_a_result_and_sends_nothing(rig: Rig) -> None:
    """Its next step goes out after the resume and not before, whatever its owner does for others meanwhile."""
    ids = [f"p{number}" for number in range(6)]
    taker = rig.worker(silent)
    rig.coordinator()
    rig.start(*ids, workflow="chain", input=2)
    until(lambda: len(taker.tasks) == len(ids), what="all first tasks taken")
    for run_id in ids:
        order(rig, run_id, "pause")
    rig.until_status("paused", *ids)
    for task in list(taker.tasks):
        finish(rig, task, output=7)
    until(lambda: all(phases(rig, run_id) == ["dispatched", "finished"] for run_id in ids), what="results recorded")
    others = [f"{run_id}-other" for run_id in ids]
    rig.start(*others, workflow="chain", input=1)
    until(lambda: len(taker.tasks) >= len(ids) + len(others), what="what came later sent")
    assert {task["run_id"] for task in taker.tasks[len(ids) :]} == set(others)
    assert [phases(rig, run_id) for run_id in ids] == [["dispatched", "finished"]] * len(ids)
    assert {rig.run(run_id)["status"] for run_id in ids} == {"paused"}
    taker.close()
    for task in taker.tasks[len(ids) :]:
        finish(rig, task)
    worker = rig.worker(doubled)
    for run_id in ids:
        order(rig, run_id, "resume")
    rig.until_status("completed", *ids, *others)
    assert [rig.run(run_id)["result"] for run_id in ids] == [[7, 2]] * len(ids)
    assert Counter(task["run_id"] for task in worker.tasks if task["run_id"] in ids) == dict.fromkeys(ids, 1)
    rig.check()


class Together:
    """Holds back what the log says until both topics have said so much, and gives it as one batch, that topic first."""

    def __init__(self, first: str, each: int) -> None:
        self._first, self._expected = first, {"run-events": each, "attempt-results": each}
        self._kept: list[Received] = []

    def __call__(self, coordinator: Coordinator) -> None:
        poll = coordinator.log.poll

        def polled(timeout: float, limit: int) -> list[Received]:
            self._kept += poll(timeout, limit)
            said = Counter(record.topic for record in self._kept)
            if any(said[topic] < n for topic, n in self._expected.items()):
                return []
            found, self._kept, self._expected = self._kept, [], {}
            return sorted(found, key=lambda record: record.topic != self._first)

        coordinator.log.poll = polled  # type: ignore[method-assign]


@pytest.mark.parametrize("first", ["run-events", "attempt-results"])
def test_a_retry_beside_the_result_that_fails_its_run(rig: Rig, first: str) -> None:
    """In one batch: a retry that comes too early is refused and nothing is tried again; one that comes after it is obeyed."""
    ids = [f"f{number}" for number in range(4)]
    taker = rig.worker(silent)
    running = rig.coordinator()
    rig.start(*ids, workflow="chain", input=1)
    until(lambda: len(taker.tasks) == len(ids), what="all tasks taken")
    running.stop()
    taker.close()
    error = {"type": "Oops", "message": "no", "retryable": False}
    for task in taker.tasks:
        finish(rig, task, outcome="failed", error=error)
        order(rig, task["run_id"], "retry")
    rig.coordinator(prepare=Together(first, len(ids)), ready=False)
    worker = rig.worker(doubled)
    obeyed = first == "attempt-results"
    rig.until_status("completed" if obeyed else "failed", *ids)
    rig.start("after", workflow="chain", input=1)
    rig.until_status("completed", "after")
    rig.check()
    for run_id in ids:
        met = commits(rig, run_id)[1]
        assert met == (["AttemptFinished", "Forked"] if obeyed else ["CommandReceived", "AttemptFinished"])
        assert rig.run(run_id)["execution"] == (2 if obeyed else 1)
        assert phases(rig, run_id) == ["dispatched", "finished"] * (2 if obeyed else 1)
    again = Counter(task["run_id"] for task in worker.tasks if task["run_id"] in ids)
    assert again == dict.fromkeys(ids if obeyed else (), 1)
    keys = {f"{rig.namespace}/{run_id}/1/1" for run_id in ids if obeyed}
    assert {key for key in worker.effects if "after" not in key} == keys, "under the key of what failed"
    told = Counter(told.type for told in rig.told() if told.run_id in ids and told.type not in ("run.started",))
    ends = {"run.failed": len(ids)} | ({"run.completed": len(ids)} if obeyed else {"command.rejected": len(ids)})
    assert told == ends


def test_each_command_beside_what_its_run_waits_for(rig: Rig) -> None:
    """The first end is final, results of runs that are paused are recorded and lead to nothing, and no end is told twice."""
    expected = cells(ENDINGS, STARTS.keys())
    taker = rig.worker(silent)
    running = rig.coordinator()
    for state, (workflow, input) in STARTS.items():
        rig.start(*(f"{state}-{kind}" for kind in KINDS), workflow=workflow, input=input)
    rig.until_status("running", *expected)
    until(lambda: len(taker.tasks) == len(KINDS), what="all first tasks taken")
    running.stop()
    taker.close()
    for task in taker.tasks:
        finish(rig, task)
    for kind in KINDS:
        rig.signal(f"signal-first-{kind}", "heard", signal_id="s")
        for state in STARTS:
            order(rig, f"{state}-{kind}", kind)
        rig.signal(f"command-first-{kind}", "heard", signal_id="s")
    asleep = "select from eec_workflow_run where ns = {ns} and run_id like 'timer%%' and wake_at > clock_timestamp()"
    until(lambda: not rig.rows(asleep), what="the timers due")

    rig.coordinator()
    paused = [f"{state}-pause" for state in ("step", "timer", "command-first")]
    rig.until_status("paused", *paused)
    until(lambda: len(rig.attempts("step-pause")) >= 2, what="its result recorded")
    rig.until_status("cancelled", *(run_id for run_id, end in expected.items() if end == "cancelled/1"))
    rig.until_status("terminated", *(run_id for run_id, end in expected.items() if end == "terminated/1"))
    sent = {run_id: phases(rig, run_id).count("dispatched") for run_id in paused}
    worker = rig.worker(doubled)
    rig.until_status("completed", *(r for r, end in expected.items() if end[0:4] == "comp" and r not in paused))
    for run_id in paused:
        known = {"step-pause": 1, "timer-pause": 0, "command-first-pause": 0}[run_id]
        assert sent[run_id] in (known, known + 1), "of what it would do next at most what was sent before the pause"
        assert phases(rig, run_id).count("dispatched") == sent[run_id], "and nothing since"
        order(rig, run_id, "resume")
    rig.until_status("completed", *paused)

    for run_id, end in expected.items():
        run = rig.run(run_id)
        assert f"{run['status']}/{run['execution']}" == end, run_id
    assert set(worker.effects.values()) <= {1}
    late = (
        "select run_id from eec_workflow_run r join eec_workflow_step_attempt a using (ns, run_id)"
        " where ns = {ns} and status in ('cancelled', 'terminated') and phase = 'dispatched' and a.at > r.closed_at"
    )
    assert rig.rows(late) == []
    rig.check()
    told = ended(rig)
    assert set(told.values()) == {1}
    assert {run_id for run_id, _ in told} == expected.keys()
