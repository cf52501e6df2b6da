"""What waits for a run, and what it has decided, over owners with other code of its version, on real servers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from click.testing import CliRunner
from rig import Rig, Running
from support import until

from ductor_stream import App, Retry, Run, Step
from ductor_stream.cli.runs import runs
from ductor_stream.engine.state import NodeCreated, SignalTaken
from ductor_stream.store.reader import RunReader

Double = Step[[int], int]
Release = Callable[[str], App]


def shop(namespace: str) -> tuple[App, Double]:
    """What all releases have: the step that a plain worker knows."""
    app = App(namespace)

    @app.step(retry=Retry(max_attempts=3, initial=0.02, maximum=0.05))
    async def double(x: int) -> int:
        return x * 2

    return app, double


def broken(namespace: str) -> App:
    """The second word meets a bug."""
    app, double = shop(namespace)
    word = app.signal("word", str)

    @app.workflow
    async def talk(run: Run, n: int) -> list[str]:
        heard: list[str] = []
        for number in range(n):
            heard.append(await run.wait_signal(word))
            if number == 1:
                raise ValueError("a bug")
            await run.step(double, number)
        return heard

    return app


def mended(namespace: str) -> App:
    """The same without it."""
    app, double = shop(namespace)
    word = app.signal("word", str)

    @app.workflow
    async def talk(run: Run, n: int) -> list[str]:
        heard: list[str] = []
        for number in range(n):
            heard.append(await run.wait_signal(word))
            await run.step(double, number)
        return heard

    return app


def asking(payload: type[Any], namespace: str) -> App:
    """A word is of this type."""
    app, double = shop(namespace)
    word = app.signal("word", payload)

    @app.workflow
    async def asks(run: Run, n: int) -> list[Any]:
        return [await run.step(double, n), await run.wait_signal(word)]

    return app


def plain(namespace: str) -> App:
    """Before a change."""
    app, double = shop(namespace)
    word = app.signal("word", str)

    @app.workflow
    async def patchy(run: Run, n: int) -> list[Any]:
        return [await run.step(double, n), await run.wait_signal(word), await run.step(double, n + 1)]

    return app


def patched(namespace: str) -> App:
    """With the change, in two places: before the word, and after it."""
    app, double = shop(namespace)
    word = app.signal("word", str)

    @app.workflow
    async def patchy(run: Run, n: int) -> list[Any]:
        first = await run.step(double, 100 if run.patched("early") else n)
        said = await run.wait_signal(word)
        return [first, said, await run.step(double, 1_000 if run.patched("late") else n + 1)]

    return app


@pytest.fixture
def deploy(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> Callable[[Release], Running]:
    """End the owner that there is, in good order, and give the partitions to one with that code."""
    owners: list[Running] = []

    def put(release: Release) -> Running:
        if owners:
            owners[-1].stop()
        monkeypatch.setattr("rig.make_app", release)
        owners.append(rig.coordinator())
        return owners[-1]

    return put


Deploy = Callable[[Release], Running]


def decided(rig: Rig, run_id: str) -> list[Any]:
    """Everything that the workflow decided, in order."""
    with RunReader(rig.database, rig.namespace) as reader:
        records = [record for entry in reader.history(run_id) for record in entry.records]
    return [decision for record in records for decision in record.decisions or ()]


def said(rig: Rig, *command: str) -> str:
    """What a command of ``runs`` says to people."""
    options = ["--database", rig.database, "--namespace", rig.namespace]
    done = CliRunner().invoke(runs, [*command, *options], catch_exceptions=False, terminal_width=1_000)
    assert done.exit_code == 0, done.output
    return done.output


def nodes(rig: Rig, *run_ids: str, node: str) -> None:
    """Wait until each run awaits that node."""

    def look() -> bool:
        made = {
            run_id: [one.node_id for one in decided(rig, run_id) if isinstance(one, NodeCreated)] for run_id in run_ids
        }
        assert all(node in found for found in made.values()), made
        return True

    until(look, within_ms=30_000, what=f"node {node}")


def test_signals_around_a_suspension_are_consumed_once_and_in_order(rig: Rig, deploy: Deploy) -> None:
    """One before the bug, one that meets it, one while suspended (and the one that met it, again), one after; owners change."""
    ids = [f"t{number}" for number in range(4)]
    worker = rig.worker()
    deploy(broken)
    rig.start(*ids, workflow="talk", input=4)
    for run_id in ids:
        rig.signal(run_id, "one", signal_id="s1")
    nodes(rig, *ids, node="3")
    for run_id in ids:
        rig.signal(run_id, "two", signal_id="s2")
    rig.until_status("suspended", *ids)
    deploy(broken)
    for run_id in ids:
        rig.signal(run_id, "three", signal_id="s3")
        rig.signal(run_id, "two", signal_id="s2")
    seen = "select count(*) as n from eec_workflow_signal where ns = {ns} and kind = 'signal' and id = 's3'"
    until(lambda: rig.rows(seen)[0]["n"] == len(ids), what="all of them heard by the second owner")
    rig.until_status("suspended", *ids)
    assert all(rig.run(run_id)["reason"].startswith("bug: ValueError") for run_id in ids)
    assert {task["node_id"] for task in worker.tasks} == {"2"}, "nothing goes on by the code that has the bug"

    deploy(mended)
    nodes(rig, *ids, node="7")
    for run_id in ids:
        rig.signal(run_id, "four", signal_id="s4")
    rig.until_status("completed", *ids)
    for run_id in ids:
        assert rig.run(run_id)["result"] == ["one", "two", "three", "four"]
        taken = [one.signal_id for one in decided(rig, run_id) if isinstance(one, SignalTaken)]
        assert taken == ["s1", "s2", "s3", "s4"]
    assert Counter(task["run_id"] for task in worker.tasks) == dict.fromkeys(ids, 4)
    assert set(worker.effects.values()) == {1}
    rig.check()
    assert rig.letters() == []


def test_a_signal_that_waits_over_a_change_of_its_schema(
    rig: Rig, deploy: Deploy, caplog: pytest.LogCaptureFixture
) -> None:
    """docs/guides/signals.md: passed over, told of in log and history, it blocks nobody; a reset gives it to code that fits."""
    deploy(partial(asking, str))
    rig.start("here", "later", workflow="asks", input=1)
    for run_id in ("here", "later"):
        rig.signal(run_id, "waiting", signal_id="s1")
    seen = "select count(*) as n from eec_workflow_signal where ns = {ns} and kind = 'signal'"
    until(lambda: rig.rows(seen)[0]["n"] == 2, what="both wait")

    deploy(partial(asking, int))
    rig.worker()
    nodes(rig, "here", "later", node="3")
    for run_id in ("here", "later"):
        assert rig.run(run_id)["status"] == "running"
        assert "passed over signal s1: its payload does not fit" in said(rig, "history", run_id)
        assert "signal word is missing" in said(rig, "show", run_id)
    lines = [vars(each) for each in caplog.records if "signal passed over" in each.message]
    assert {(line["ductor"]["run_id"], line["ductor"]["signal_id"]) for line in lines} == {
        ("here", "s1"),
        ("later", "s1"),
    }
    rig.signal("here", 7, signal_id="s2")
    rig.until_status("completed", "here")
    assert rig.run("here")["result"] == [2, 7]

    deploy(partial(asking, str))
    assert rig.run("later")["status"] == "running"
    rig.signal("later", "behind", signal_id="s2")
    rig.until_status("completed", "later")
    assert rig.run("later")["result"] == [2, "behind"]
    for run_id in ("here", "later"):
        reset = {"type": "run.reset", "run_id": run_id, "command_id": "again", "to_node": "1"}
        rig.send(rig.topics.run_events, run_id, reset)
        until(lambda run_id=run_id: rig.run(run_id)["execution"] == 2, what="the reset applied")
    rig.until_status("completed", "here", "later")
    assert [rig.run(run_id)["result"] for run_id in ("here", "later")] == [[2, "waiting"], [2, "waiting"]]
    rig.check()
    assert rig.letters() == []


def test_a_change_is_taken_by_those_that_have_not_passed_it(rig: Rig, deploy: Deploy) -> None:
    """A run that went past the first place and not yet the second, and a new one; what each has decided, its owners keep."""
    rig.worker()
    deploy(plain)
    rig.start("old", workflow="patchy", input=1)
    nodes(rig, "old", node="2")
    deploy(patched)
    rig.start("new", workflow="patchy", input=1)
    nodes(rig, "new", node="2")
    deploy(patched)
    for run_id in ("old", "new"):
        rig.signal(run_id, "go", signal_id="s")
    rig.until_status("completed", "old", "new")
    assert rig.run("old")["result"] == [2, "go", 2_000], "it is past the first place, and comes to the second"
    assert rig.run("new")["result"] == [200, "go", 2_000]
    assert "has change early" not in said(rig, "history", "old")
    assert "has change early" in said(rig, "history", "new")
    rig.check()
