"""R11, protocol 23: a run whose code kills the process, or never lets go of it, is found, suspended, and its partition goes on."""

from __future__ import annotations

import pytest
from rig import Rig
from rig_services import Child
from support import fresh_name, until

GOOD = [f"good-{n}" for n in range(6)]
DIED = "died: its owner died 2 times while it was ticked"


def owner(rig: Rig, point: str) -> Child:
    """A coordinator process that may die before it is ready."""
    arguments = (rig.bootstrap, rig.database, rig.namespace, "one", point)
    return Child(*arguments, log=rig.folder / f"{fresh_name('child')}.log")


@pytest.mark.parametrize(
    ("how", "point", "reason", "owners"),
    [
        # One unnoted death, two noted ones, and the owner that survives.
        ("crashes", "none", DIED, 4),
        ("never yields", "hang", DIED, 4),
        # Python refuses: the run has a bug like any other, and its owner lives.
        ("allocates", "little-memory", "bug: MemoryError", 1),
    ],
)
def test_a_run_that_takes_its_owner_along_is_suspended_and_the_others_go_on(
    rig: Rig, how: str, point: str, reason: str, owners: int
) -> None:
    rig.worker()
    rig.start(*GOOD[:3])
    rig.start("killer", workflow="deadly", input=how)
    rig.start(*GOOD[3:])
    children = [owner(rig, point)]

    def settled() -> bool:
        if children[-1].process.poll() is not None:
            children.append(owner(rig, point))
        statuses = {run_id: rig.run(run_id).get("status") for run_id in (*GOOD, "killer")}
        assert statuses == dict.fromkeys(GOOD, "completed") | {"killer": "suspended"}, statuses
        return True

    try:
        until(settled, within_ms=90_000, what="the killer found, the others completed")
        run = rig.run("killer")
        assert run["reason"].startswith(reason)
        assert len(children) == owners
        rig.check()
        suspects = rig.rows("select suspect from eec_partition where ns = {ns}")
        assert all(row["suspect"] != "killer" for row in suspects)
    finally:
        children[-1].kill()
