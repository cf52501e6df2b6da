"""R11, protocol 23: a run whose code kills the process is found, suspended, and its partition goes on."""

from __future__ import annotations

from rig import Rig
from rig_services import Child
from support import fresh_name, until

GOOD = [f"good-{n}" for n in range(6)]


def owner(rig: Rig) -> Child:
    """A coordinator process that may die before it is ready."""
    arguments = (rig.bootstrap, rig.database, rig.namespace, "one", "none")
    return Child(*arguments, log=rig.folder / f"{fresh_name('child')}.log")


def test_a_run_that_kills_its_owner_is_suspended_and_the_others_go_on(rig: Rig) -> None:
    rig.worker()
    rig.start(*GOOD[:3])
    rig.start("killer", workflow="deadly", input=1)
    rig.start(*GOOD[3:])
    children = [owner(rig)]

    def settled() -> bool:
        if children[-1].process.poll() is not None:
            children.append(owner(rig))
        statuses = {run_id: rig.run(run_id).get("status") for run_id in (*GOOD, "killer")}
        assert statuses == dict.fromkeys(GOOD, "completed") | {"killer": "suspended"}, statuses
        return True

    try:
        until(settled, within_ms=60_000, what="the killer found, the others completed")
        run = rig.run("killer")
        assert run["reason"].startswith("died: its owner died 2 times while it was ticked")
        assert len(children) == 4, "one unnoted death, two noted ones, and the owner that survives"
        rig.check()
        suspects = rig.rows("select suspect from eec_partition where ns = {ns}")
        assert all(row["suspect"] != "killer" for row in suspects)
    finally:
        children[-1].kill()
