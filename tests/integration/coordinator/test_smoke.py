"""s"""
from __future__ import annotations
from rig import Rig


def test_runs_complete(rig: Rig) -> None:
    coordinator = rig.coordinator()
    worker = rig.worker()
    ids = [f"r{n}" for n in range(20)]
    rig.start(*ids)
    rig.start("o", workflow="order", input=3)
    rig.signal("o", "hi")
    rig.until_status("completed", *ids, "o")
    assert rig.run("o")["result"] == [0, 2, 4, "hi", 0, 2, 4]
    rig.check()
    assert coordinator.reasons() == []
