"""Runs that nothing can advance are found and told of, on real Kafka and Postgres (R9)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

import pytest
from click.testing import CliRunner
from rig import Rig
from support import until

from ductor_stream.cli.runs import runs
from ductor_stream.coordinator.cache import Cached
from ductor_stream.coordinator.service import Coordinator

NOTHING = "the workflow awaits nothing that can happen: no step, timer, signal or child"


def show(rig: Rig, run_id: str, *options: str) -> str:
    """What ``runs show`` says."""
    where = ["--database", rig.database, "--namespace", rig.namespace, *options]
    done = CliRunner().invoke(runs, ["show", run_id, *where], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


@pytest.mark.moves("ductor_runs_suspended")
def test_a_run_that_awaits_nothing_is_suspended_and_says_so(rig: Rig) -> None:
    """By its owner, at the event that led there; neither the next owner nor a resume forgets what was done."""
    worker = rig.worker()
    running = rig.coordinator()
    rig.start("i", workflow="idle", input=None)
    rig.start("other", workflow="chain", input=2)
    rig.until_status("suspended", "i")
    rig.until_status("completed", "other")
    assert rig.run("i")["reason"].startswith(f"stuck: {NOTHING} (at ")
    assert "rig_app.py" in rig.run("i")["reason"]
    until(lambda: [told.type for told in rig.told() if told.run_id == "i"][1:], what="its lifecycle")
    (told,) = [told for told in rig.told() if told.run_id == "i" and told.type == "run.suspended"]
    assert told.data["reason"].startswith(f"stuck: {NOTHING}")
    assert running.count("ductor_runs_suspended", reason="stuck") == 1
    shown = json.loads(show(rig, "i", "--json"))
    assert shown["status"] == "suspended"
    assert shown["waiting_for"].startswith(f"suspended, stuck: {NOTHING} (at ")
    assert shown["waiting_for"].endswith("; deploy other code under version 1, or resume it")
    assert "suspended, stuck: " in show(rig, "i")

    running.stop()
    rig.coordinator()
    rig.send(rig.topics.run_events, "i", {"type": "run.resume", "run_id": "i", "command_id": "r"})
    heard = "select 1 from eec_workflow_signal where ns = {ns} and id = 'r'"
    until(lambda: rig.rows(heard), what="the resume heard")
    assert rig.run("i")["status"] == "suspended", "the same code"
    assert len([task for task in worker.tasks if task["run_id"] == "i"]) == 1
    rig.check()


def test_a_run_whose_open_nodes_are_gone_is_failed_by_the_watchdog(rig: Rig) -> None:
    """No code of ours leaves such a one; a fault of ours might. Its neighbours and its owner go on."""
    lost: set[str] = set()

    def forgetful(coordinator: Coordinator) -> None:
        load = coordinator.cache.load

        def loaded(run_ids: Iterable[str], *more: Any) -> Iterator[dict[str, Cached]]:
            for found in load(run_ids, *more):
                for run_id in lost & found.keys():
                    state = found[run_id].state
                    if state is not None:
                        state.nodes.clear()
                yield found

        coordinator.cache.load = loaded  # type: ignore[method-assign]

    running = rig.coordinator(rig.fast(watch_s=0.3), prepare=forgetful)
    rig.start("victim", "other", workflow="words", input=1)
    rig.until_status("running", "victim", "other")
    lost.add("victim")
    rig.until_status("failed", "victim")
    error = rig.run("victim")["error"]
    assert error["code"] == "stuck"
    assert error["message"] == "nothing is awaited: no step, timer, signal or child, and nothing is held"
    until(lambda: running.count("ductor_runs_closed", outcome="failed") == 1, what="counted")

    def told() -> list[dict[str, Any]]:
        return [each.data for each in rig.told() if (each.run_id, each.type) == ("victim", "run.failed")]

    (last,) = until(told, what="its lifecycle")
    assert last["error"]["code"] == "stuck"
    assert json.loads(show(rig, "victim", "--json"))["error"]["code"] == "stuck"
    assert "nothing is awaited" in show(rig, "victim")
    rig.signal("other", "on", signal_id="s")
    rig.until_status("completed", "other")
    assert running.alive
    lost.clear()
    rig.check()
