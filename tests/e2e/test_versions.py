"""Deploys: a run is pinned to the version that it started on, and goes on when code that fits comes back."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

from e2e.load import Load, doubled
from fleet import Fleet, Member, fleet_of, module
from rig import Rig
from support import until

HEAD = """
from told import FOLDER, effect
from ductor_stream import App, Run

app = App("shop")
word = app.signal("word", str)

@app.step
async def first(n: int) -> int:
    effect(step="first")
    return n

@app.step
async def second(n: int) -> int:
    effect(step="second")
    return n
"""
V1 = """
@app.workflow(version="1")
async def flow(run: Run, n: int) -> list[int | str]:
    return ["one", await run.step(first, n), await run.wait_signal(word)]
"""
V2 = """
@app.workflow(name="flow", version="2")
async def flow_2(run: Run, n: int) -> list[int | str]:
    return ["two", await run.step(second, n), await run.wait_signal(word), await run.step(first, n)]
"""
SWAPPED = """
@app.workflow(version="1")
async def flow(run: Run, n: int) -> list[int | str]:
    said = await run.wait_signal(word)
    return ["one", await run.step(first, n), said]
"""
BUG = """
@app.workflow
async def total(run: Run, n: int) -> int:
    found = await run.step(first, n)
    return len(found) + await run.step(second, n)

@app.workflow
async def moody(run: Run, n: int) -> int:
    found = await run.step(first, n)
    if (FOLDER.parent / "broken").exists():
        raise ValueError("the machine is broken")
    return found
"""
MENDED = BUG.replace("len(found)", "found")
ORDER_1 = """
@app.workflow(name="order", version="1")
async def order_1(run: Run, what: dict[str, int | bool]) -> str:
    await run.step(first, 1)
    await run.step(second, 2)
    return "one"
"""
ORDER_2 = """
@app.workflow(name="order", version="2")
async def order_2(run: Run, what: dict[str, int | bool]) -> str:
    await run.step(second, 2)
    await run.step(first, 1)
    return "two"
"""
OLD_IDS = [f"old-{n}" for n in range(6)]


class Deployment:
    """Two coordinators and a worker, all with the same code."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet, self._rig = fleet, fleet.rig
        self._members: list[Member] = []
        self._count = 0

    def deploy(self, text: str) -> None:
        """End all that runs in good order, and start it anew with other code."""
        folder = self._folder(text)
        for member in self._members:
            member.terminate()
        for member in self._members:
            member.until_ended()
        self._members = [self._start(folder, n) for n in range(3)]
        self._fleet.until_ready()

    def roll_out(self, text: str) -> None:
        """The same, one after the other."""
        folder = self._folder(text)
        for n, member in enumerate(self._members):
            member.terminate()
            member.until_ended()
            self._members[n] = self._start(folder, n)
            self._fleet.until_ready()

    def _folder(self, text: str) -> Path:
        self._count += 1
        return module(self._rig, f"release-{self._count}", HEAD + text)

    def _start(self, folder: Path, n: int) -> Member:
        return self._fleet.start("worker" if n == 2 else "coordinator", folder=folder, instance=f"pod-{n}")


def until_first(rig: Rig, *run_ids: str, nodes: int = 1) -> None:
    """Wait until so many steps of each run are done."""

    def look() -> bool:
        done = {run_id: sum(a["phase"] == "finished" for a in rig.attempts(run_id)) for run_id in run_ids}
        assert all(count == nodes for count in done.values()), done
        return True

    until(look, within_ms=20_000, what="the first step")


def until_suspended(rig: Rig, *run_ids: str) -> list[str]:
    """Wait until all are suspended; their reasons."""
    rig.until_status("suspended", *run_ids)
    return [rig.run(run_id)["reason"] for run_id in run_ids]


def test_a_run_keeps_the_version_that_it_started_on(rig: Rig) -> None:
    """Old runs go on by version 1, and wait while it is not deployed; new ones take the last, or the one they name."""
    with fleet_of(rig) as fleet:
        deployment = Deployment(fleet)
        deployment.deploy(V1)
        rig.start(*OLD_IDS, "patient", workflow="flow", input=1)
        until_first(rig, *OLD_IDS, "patient")
        deployment.deploy(V2)
        for run_id in OLD_IDS:
            rig.signal(run_id, "go")
        assert {reason.partition(":")[0] for reason in until_suspended(rig, *OLD_IDS)} == {"version_missing"}
        assert rig.run("patient")["status"] == "running", "nothing has happened to it meanwhile"

        deployment.roll_out(V1 + V2)
        rig.start("new", workflow="flow", input=1)
        rig.start("named", workflow="flow", input=1, version="1")
        until_first(rig, "new", "named")
        for run_id in ("patient", "new", "named"):
            rig.signal(run_id, "go")
        rig.until_status("completed", *OLD_IDS, "patient", "new", "named")
        assert [rig.run(run_id)["version"] for run_id in ("old-0", "patient", "new", "named")] == ["1", "1", "2", "1"]
        for run_id in (*OLD_IDS, "patient", "named"):
            assert rig.run(run_id)["result"] == ["one", 1, "go"]
        assert rig.run("new")["result"] == ["two", 1, "go", 1]
        assert set(fleet.effect_counts().values()) == {1}
        rig.check()


def clock(rig: Rig) -> datetime:
    """Postgres's."""
    at: datetime = rig.rows("select clock_timestamp() as at")[0]["at"]
    return at


def test_a_roll_from_one_version_to_two_under_load_parks_nothing_for_longer_than_it_lasts(rig: Rig) -> None:
    """A new owner starts runs on version 2, which an old one may have to give back to a new one: it waits till then."""
    with fleet_of(rig) as fleet:
        deployment = Deployment(fleet)
        deployment.deploy(ORDER_1)
        load = Load(rig)
        with load.flowing():
            until(lambda: len(load.ids) > 20, within_ms=20_000, what="the load")
            began = clock(rig)
            deployment.roll_out(ORDER_1 + ORDER_2)
            rolled, lasted = len(load.ids), clock(rig) - began
            suspended = "select run_id from eec_workflow_run where ns = {ns} and status = 'suspended'"
            until(lambda: not rig.rows(suspended), what="nobody waiting for a version any more")
            until(lambda: len(load.ids) > rolled + 20, within_ms=20_000, what="the load after it")
        rig.until_status("completed", *load.ids)
        longest = rig.rows("select max(closed_at - started_at) as took from eec_workflow_run where ns = {ns}")[0][
            "took"
        ]
        assert longest < lasted, "no run has waited for longer than the roll"
        assert {rig.run(run_id)["result"] for run_id in load.ids} == {"one", "two"}
        assert {rig.run(run_id)["version"] for run_id in load.ids[rolled + 1 :]} == {"2"}
        assert len(fleet.effect_counts()) == 2 * len(load.ids)
        assert doubled(fleet) == {}
        rig.check()
        assert rig.letters() == []


def resume(fleet: Fleet) -> None:
    """``ductor-stream resume`` tries a suspended run again with the code that is there (docs/guides/control.md)."""
    rig, broken = fleet.rig, fleet.rig.folder / "broken"
    broken.touch()
    rig.start("moody", workflow="moody", input=7)
    assert until_suspended(rig, "moody")[0].startswith("bug: ValueError: the machine is broken")

    def told() -> list[str]:
        return [each.type for each in rig.told() if each.run_id == "moody"]

    fleet.say("resume", "moody")
    again = ["run.started", "run.suspended", "run.resumed", "run.suspended"]
    until(lambda: told() == again, within_ms=30_000, what="a try that ends as the first one did")
    until_suspended(rig, "moody")
    broken.unlink()
    fleet.say("resume", "moody")
    rig.until_status("completed", "moody")
    assert rig.run("moody")["result"] == 7
    until(lambda: told() == [*again, "run.resumed", "run.completed"], what="its end told")


def test_suspended_runs_go_on_with_other_code_under_their_version(rig: Rig) -> None:
    """A bug, and awaits in another order: what was done is not done again, and nothing is done by the wrong code."""
    with fleet_of(rig) as fleet:
        deployment = Deployment(fleet)
        deployment.deploy(V1 + BUG)
        sums = [f"sum-{n}" for n in range(6)]
        rig.start(*OLD_IDS, workflow="flow", input=1)
        rig.start(*sums, workflow="total", input=1)
        until_first(rig, *OLD_IDS)
        for reason in until_suspended(rig, *sums):
            assert reason.startswith("bug: TypeError")
        assert "shop.py" in fleet.show(sums[0])["waiting_for"]
        resume(fleet)

        deployment.deploy(SWAPPED + MENDED)
        rig.until_status("completed", *sums)
        assert [rig.run(run_id)["result"] for run_id in sums] == [2] * len(sums)
        for run_id in OLD_IDS:
            rig.signal(run_id, "go")
        for reason in until_suspended(rig, *OLD_IDS):
            assert reason.startswith("nondeterminism: ")
            assert "first" in reason and "word" in reason

        deployment.deploy(V1 + MENDED)
        rig.until_status("completed", *OLD_IDS)
        assert [rig.run(run_id)["result"] for run_id in OLD_IDS] == [["one", 1, "go"]] * len(OLD_IDS)
        assert set(fleet.effect_counts().values()) == {1}
        rig.check()
