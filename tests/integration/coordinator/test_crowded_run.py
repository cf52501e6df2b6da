"""R11: a run that emits a hundred thousand actions at once costs its partition a pause, and nobody else anything."""

from __future__ import annotations

from rig import Rig

ACTIONS = 100_000


def test_a_run_of_a_hundred_thousand_actions_and_its_neighbours(rig: Rig) -> None:
    neighbours = [run_id for run_id in (f"r{n}" for n in range(60)) if rig.home(run_id) == rig.home("crowd")][:5]
    rig.coordinator()
    rig.start("crowd", workflow="fan", input=ACTIONS)
    rig.start(*neighbours[:3], workflow="words", input=0)
    rig.until_status("completed", *neighbours[:3], within_ms=90_000)
    rig.until_status("running", "crowd")
    assert len(rig.attempts("crowd")) == ACTIONS
    rig.send(rig.topics.run_events, "crowd", {"type": "run.terminate", "command_id": "enough"})
    rig.start(*neighbours[3:], workflow="words", input=0)
    rig.until_status("terminated", "crowd", within_ms=90_000)
    rig.until_status("completed", *neighbours[3:])
    rig.check()
