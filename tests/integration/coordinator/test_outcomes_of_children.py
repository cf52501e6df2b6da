"""How a child ended reaches its parent once, whichever of their owners dies while it is being told, at whatever point (R5)."""

from __future__ import annotations

import pytest
from coordinator_child import MOMENTS, POINTS
from rig import Rig
from rig_control import commits
from support import until

NAME = "coordinator-1"
LEVELS = 2
TREE = [f"t{path}" for path in ("", "l", "r", "ll", "lr", "rl", "rr")]
TOLD = [moment for moment in MOMENTS if moment]


def heard(rig: Rig, run_id: str) -> int:
    """How many outcomes of children stand in the history of a run."""
    return sum(kinds.count("ChildFinished") for kinds in commits(rig, run_id))


def outcomes(rig: Rig) -> int:
    """How many wait for their parents."""
    return len(rig.rows("select from eec_inbox where ns = {ns} and source like 'told/%%'"))


@pytest.mark.parametrize("moment", TOLD)
@pytest.mark.parametrize("point", POINTS)
def test_an_owner_dies_with_the_outcome_of_a_child(rig: Rig, point: str, moment: str) -> None:
    """All have one owner: a run in the middle of the tree hears, ends and tells, all in one batch."""
    child = rig.child(f"{point}@{moment}", instance=NAME)
    rig.start("t", workflow="tree", input=LEVELS)
    rig.until_status("running", *TREE)
    for leaf in TREE[3:]:
        rig.signal(leaf, "on", signal_id="s")
    child.wait_dead()
    assert child.said(f"dies {point}")
    assert rig.run("t")["status"] == "running"
    assert heard(rig, "t") == 0, "it has all of it before it"
    found = outcomes(rig) + sum(heard(rig, run_id) for run_id in TREE)
    assert (found == 0) == (moment == "sent" and point in ("after-consume", "after-tick")), "dead where it was to die"
    rig.coordinator(instance=NAME)
    rig.until_status("completed", *TREE)
    assert rig.run("t")["result"] == len(TREE)
    rig.check()
    assert [heard(rig, run_id) for run_id in TREE] == [2, 2, 2, 0, 0, 0, 0]


def pairs(rig: Rig) -> list[str]:
    """Parents of partition 0 whose children are on partition 1."""
    found = (f"g{number}" for number in range(60))
    return [each for each in found if (rig.home(each), rig.home(f"{each}-child")) == (0, 1)][:4]


@pytest.mark.parametrize("moment", TOLD)
@pytest.mark.parametrize("point", ["after-tick", "after-commit"])
def test_one_of_two_owners_dies_with_the_outcome_of_a_child(rig: Rig, point: str, moment: str) -> None:
    """The child's or the parent's; the other one goes on, and needs nothing from anybody but what is stored."""
    owners = {name: rig.child(f"{point}@{moment}", instance=name) for name in ("one", "two")}
    parents = pairs(rig)
    children = [f"{each}-child" for each in parents]
    rig.start(*parents, workflow="guardian", input="cancel")
    rig.until_status("running", *parents, *children)
    for each in children:
        rig.signal(each, "done", signal_id="s")
    dead = until(
        lambda: [name for name, owner in owners.items() if owner.process.poll() is not None],
        within_ms=30_000,
        what="one of them dead",
    )
    assert len(dead) == 1, "whose partition alone has what it was to die of"
    owners[dead[0]].wait_dead()
    rig.coordinator(instance=dead[0])
    rig.until_status("completed", *parents, *children)
    assert [rig.run(each)["result"] for each in parents] == [["done"]] * len(parents)
    rig.check()
    assert [heard(rig, each) for each in parents] == [1] * len(parents)
    assert [name for name, owner in owners.items() if owner.process.poll() is None] == sorted(owners.keys() - dead)
