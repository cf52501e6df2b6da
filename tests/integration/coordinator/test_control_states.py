"""Each command meets a run that backs off, awaits a child, is paused, suspended (since its code is missing, or has a bug),
cleans up, shields something, or has continued as new and not begun yet.

As in ``test_control_races.py``: it lies in the log beside what the run waits for, and the next owner finds both. Here
a worker comes only when all commands are obeyed, so that how they left each run can be seen.
"""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import msgspec
import pytest
import rig as rigs
from rig import Rig
from rig_app import make_app
from rig_control import KINDS, cells, ended, finish, order, phases
from rig_worker import PlainWorker, doubled
from support import until

from ductor_stream import App, Run
from ductor_stream.coordinator.service import Coordinator
from ductor_stream.engine.state import decode_header

HOUR_MS = 3_600_000

# How each run stands when its command is obeyed and the result beside it is recorded, and how it ends after that, in which
# execution: what is paused is resumed, code that is missing is deployed, all tasks are answered.
STANDS = """
                cancel     terminate   pause      resume     retry      reset
    backing-off cancelled  terminated  paused     running    running    running
    child       cancelled  terminated  paused     running    running    running
    paused      paused     terminated  paused     running    paused     running
    undeployed  suspended  terminated  paused     suspended  suspended  suspended
    tidying     running    terminated  paused     running    running    running
    shielded    running    terminated  paused     running    running    running
    bugged      suspended  terminated  paused     suspended  suspended  running
    renewing    running    terminated  paused     running    running    running
"""
ENDINGS = """
                cancel       terminate     pause        resume       retry        reset
    backing-off cancelled/1  terminated/1  completed/1  completed/1  completed/1  completed/2
    child       cancelled/1  terminated/1  completed/1  completed/1  completed/1  completed/2
    paused      cancelled/1  terminated/1  completed/1  completed/1  completed/1  completed/2
    undeployed  cancelled/1  terminated/1  completed/1  completed/1  completed/1  completed/2
    tidying     cancelled/1  terminated/1  cancelled/1  cancelled/1  cancelled/1  completed/2
    shielded    cancelled/1  terminated/1  completed/1  completed/1  completed/1  completed/2
    bugged      cancelled/1  terminated/1  completed/1  completed/1  completed/1  completed/2
    renewing    cancelled/2  terminated/2  completed/2  completed/2  completed/2  completed/3
"""
SENT = """
                cancel  terminate  pause  resume  retry  reset
    backing-off 1-2     1-2        1-2    2       2      2-3
    child       0-1     0-1        0-1    1       1      0-1
    paused      1       1          1      2       1      2
    undeployed  2       2          2      2       2      4
    tidying     3       3          3      3       3      5
    shielded    3       2          2      2       2      4
    bugged      1       1          1      1       1      2
    renewing    1       1          1      1       1      2
"""
"""How many attempts were sent by then. By ``least-most`` where it matters which of the two came first."""

STARTS: dict[str, tuple[str, Any]] = {
    "backing-off": ("chain", 2),
    "child": ("ward", None),
    "paused": ("chain", 2),
    "undeployed": ("fan", 2),
    "tidying": ("tidy", None),
    "shielded": ("tidy", None),
    "bugged": ("order", 1),
    "renewing": ("laps", 2),
}
BESIDE = {"paused": "double", "undeployed": "double", "tidying": "keep", "shielded": "keep"}
"""The step whose result lies beside the command; of two it is the first."""
RESULTS: dict[str, tuple[Any, ...]] = {
    "backing-off": ([0, 2], [0, 2]),
    "child": ([["heard"], 2], [["heard"], 2]),
    "paused": ([7, 2], [0, 2]),
    "undeployed": ([7, 2], [0, 2]),
    "tidying": (None, [2, 6]),
    "shielded": ([2, 7], [2, 6]),
    "bugged": ([0, "heard", 0], [0, "heard", 0]),
    "renewing": (None, 1, 1),
}
"""What comes of it in each execution, in the first one with 7 as the result beside the command."""
TO: dict[str, dict[str, Any]] = {
    "undeployed": {"to_node": "1.1"},
    "tidying": {"to_node": "1.1"},
    "shielded": {"to_node": "1.1"},
    "bugged": {"to_node": "1.1"},
    "renewing": {"to_node": None, "to_transition": 1},
}
"""The beginning to which a reset goes."""

REFUSED = {
    *(f"{state}-{kind}" for state in STARTS for kind in ("resume", "retry")),
    *("tidying-cancel", "paused-pause"),
} - {"paused-resume", "undeployed-resume", "bugged-resume"}


def bad_release(namespace: str) -> App:
    """Without the code of the runs that are ``undeployed``, and with a bug for those that are ``bugged``."""
    app = make_app(namespace)
    del app.workflows["fan", "1"], app.workflows["order", "1"]

    @app.workflow
    async def order(run: Run, n: int) -> list[Any]:
        found = await asyncio.gather(*(run.step(app.steps["double"], x) for x in range(n)))
        raise ValueError(f"a bug: {found}")

    return app


def not_yet(coordinator: Coordinator) -> None:
    """What is ``renewing`` does not go on: its next execution has begun, its code has not."""
    due = coordinator.timers.due

    def others(now: int, limit: int) -> list[tuple[int, int, str]]:
        return [each for each in due(now, limit) if not each[2].startswith("renewing")]

    coordinator.timers.due = others  # type: ignore[method-assign]


def not_yet_in_an_hour(coordinator: Coordinator) -> None:
    not_yet(coordinator)
    an_hour_on(coordinator)


def an_hour_on(coordinator: Coordinator) -> None:
    """Postgres's clock has gone on by an hour: each back-off is over when the owner takes its partitions."""
    store: Any = coordinator.store
    commit, take, ping = store.commit, store.take, store.ping

    def taken(partition: int, token: str) -> Any:
        found = take(partition, token)
        return msgspec.structs.replace(found, now=found.now + HOUR_MS)

    store.commit = lambda batch: commit(batch) + HOUR_MS
    store.take = taken
    store.ping = lambda: ping() + HOUR_MS


def ids(*states: str) -> list[str]:
    return [f"{state}-{kind}" for state in states for kind in KINDS]


class Worker:
    """Answers what it is asked once ``works`` is set; until then it takes tasks, and fails those that are to back off."""

    def __init__(self, rig: Rig) -> None:
        self.works = threading.Event()
        self.plain: PlainWorker = rig.worker(self._answer)

    def _answer(self, task: dict[str, Any]) -> dict[str, Any] | None:
        if self.works.is_set():
            return doubled(task)
        if task["run_id"].startswith("backing-off") and task["attempt"] == 1 and task["execution"] == 1:
            error = {"type": "Oops", "message": "later", "retryable": True, "retry_after_ms": 600_000}
            return {"outcome": "failed", "error": error}
        return None

    def has(self, *run_ids: str, each: int) -> list[dict[str, Any]]:
        """The tasks of these runs, in the order of their nodes, once there are so many."""

        def look() -> list[dict[str, Any]]:
            tasks = {
                (t["run_id"], t["node_id"], t["generation"]): t for t in self.plain.tasks if t["run_id"] in run_ids
            }
            assert len(tasks) == each * len(run_ids), len(tasks)
            return [tasks[place] for place in sorted(tasks)]

        return until(look, within_ms=30_000, what=f"{each} task(s) of each of {len(run_ids)} runs")


def brought_there(rig: Rig, worker: Worker) -> None:
    """Each run to its state, by an owner that has all code, and one that lacks some."""
    for state, (workflow, input) in STARTS.items():
        rig.start(*ids(state), workflow=workflow, input=input)
    worker.has(*ids("backing-off", "paused", "bugged"), each=1)
    worker.has(*ids("undeployed", "tidying", "shielded"), each=2)
    children = "select from eec_workflow_run where ns = {ns} and workflow = 'words' and status = 'running'"
    until(lambda: len(rig.rows(children)) == len(KINDS), what="the children waiting")
    for run_id in ids("paused"):
        order(rig, run_id, "pause", command_id="first")
    for run_id in ids("tidying"):
        order(rig, run_id, "cancel", command_id="first")
    rig.until_status("paused", *ids("paused"))
    worker.has(*ids("tidying"), each=3)
    for task in worker.has(*ids("renewing"), each=1):
        finish(rig, task)
    until(lambda: {rig.run(run_id)["execution"] for run_id in ids("renewing")} == {2}, what="all continued as new")
    failed = ["dispatched", "finished"]
    until(lambda: all(phases(rig, run_id) == failed for run_id in ids("backing-off")), what="all of them back off")


def in_the_log(rig: Rig, worker: Worker) -> None:
    """Results, words and commands, while nobody is there to read them."""
    for state, step in BESIDE.items():
        tasks = worker.has(*ids(state), each={"paused": 1, "tidying": 3}.get(state, 2))
        firsts = {task["run_id"]: task for task in reversed(tasks) if task["step"] == step}
        for run_id in ids(state):
            finish(rig, firsts[run_id], output=7)
    for run_id in ids("bugged"):
        rig.signal(run_id, "heard", signal_id="s")
    for state in STARTS:
        for kind in KINDS:
            order(rig, f"{state}-{kind}", kind, **(TO.get(state, {}) if kind == "reset" else {}))
    for run_id in ids("child"):
        rig.signal(f"{run_id}/1/1", "heard", signal_id="s")


COMMANDS = "select from eec_workflow_signal where ns = {ns} and kind = 'command' and run_id not like '%%/%%'"


def obeyed(rig: Rig, before: int) -> None:
    """All commands are known, and all results recorded."""
    until(lambda: len(rig.rows(COMMANDS)) == before + len(ids(*STARTS)), within_ms=30_000, what="all commands known")
    open = (
        "select run_id from eec_workflow_step_attempt where ns = {ns} group by 1"
        " having count(*) = sum((phase = 'dispatched')::int)"
    )
    until(lambda: not [row for row in rig.rows(open) if not row["run_id"].startswith("child")], what="results recorded")


def oddly_sent(rig: Rig) -> dict[str, int]:
    """Runs that have sent other than they may."""
    found = {}
    for run_id, bounds in cells(SENT, STARTS).items():
        least, _, most = bounds.partition("-")
        sent = phases(rig, run_id).count("dispatched")
        if not int(least) <= sent <= int(most or least):
            found[run_id] = sent
    return found


def odd(rig: Rig) -> dict[str, Any]:
    """Those, and runs that do not stand as they should."""
    statuses = {run_id: (rig.run(run_id)["status"], status) for run_id, status in cells(STANDS, STARTS).items()}
    return oddly_sent(rig) | {run_id: status for run_id, status in statuses.items() if len({*status}) > 1}


def as_it_should(rig: Rig) -> bool:
    assert odd(rig) == {}
    return True


def test_each_command_in_each_other_state(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the tables say: what is paused, suspended or closed has sent nothing more, and nothing is lost to those that go on."""
    worker = Worker(rig)
    owner = rig.coordinator(prepare=not_yet)
    brought_there(rig, worker)
    owner.stop()
    monkeypatch.setattr(rigs, "make_app", bad_release)
    owner = rig.coordinator(prepare=not_yet)
    for run_id in ids("undeployed"):
        rig.signal(run_id, "met by nobody", signal_id="s")
    for task in worker.has(*ids("bugged"), each=1):
        finish(rig, task)
    rig.until_status("suspended", *ids("undeployed", "bugged"))
    assert all(rig.run(run_id)["reason"].startswith("bug: ValueError") for run_id in ids("bugged"))
    owner.stop()
    before = len(rig.rows(COMMANDS))
    in_the_log(rig, worker)
    owner = rig.coordinator(prepare=not_yet_in_an_hour)
    obeyed(rig, before)
    until(lambda: as_it_should(rig), within_ms=30_000, what="each run as it should be")
    rig.start("a", "b", "c", "d", workflow="words", input=0)
    rig.until_status("completed", "a", "b", "c", "d")
    assert odd(rig) == {}, "whatever their owners do for others"
    owner.stop()

    monkeypatch.undo()
    rig.coordinator(prepare=an_hour_on)
    worker.works.set()
    for task in list(worker.plain.tasks):
        finish(rig, task, **(doubled(task) or {}))
    for run_id, status in cells(STANDS, STARTS).items():
        if status == "paused":
            order(rig, run_id, "resume", command_id="then")
    rig.signal("child-reset/1/1/~2", "heard", signal_id="s")
    endings = cells(ENDINGS, STARTS)
    for status in ("completed", "cancelled", "terminated"):
        rig.until_status(status, *(run_id for run_id, end in endings.items() if end.startswith(status)))
    rig.check()
    assert rig.rows("select run_id from eec_workflow_run where ns = {ns} and closed_at is null") == [], (
        "no child either"
    )
    for run_id, end in endings.items():
        run = rig.run(run_id)
        assert f"{run['status']}/{run['execution']}" == end, run_id
        if run["status"] == "completed":
            assert run["result"] == RESULTS[run_id.rpartition("-")[0]][run["execution"] - 1], run_id
        if run["workflow"] == "tidy" and run["status"] != "terminated":
            view = msgspec.json.decode(decode_header(bytes(run["state"])).view or b"null")
            assert view == {"kept": 7 if run["execution"] == 1 else 6}, f"{run_id}: what is shielded counts"
    cleaned = {f"{state}-{kind}" for state in ("tidying", "shielded") for kind in KINDS if kind != "terminate"}
    stopped = {run_id for run_id, end in endings.items() if not end.startswith("completed")} - cleaned
    assert not oddly_sent(rig).keys() & stopped, "what was ended has sent nothing more"
    told = ended(rig)
    assert set(told.values()) == {1}
    assert {run_id for run_id, _ in told} >= endings.keys()
    refused = {told.run_id for told in rig.told() if told.type == "command.rejected"}
    assert refused & endings.keys() == REFUSED
