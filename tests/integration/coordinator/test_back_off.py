"""A retry's back-off outlives its owner: the next one sends the attempt, once, and not before its time."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from rig import Rig
from rig_worker import doubled
from support import until

BACK_OFF_S = 3.0


def fails_at_first(task: dict[str, Any]) -> dict[str, Any] | None:
    """The first attempt has an error, the next does it."""
    if task["attempt"] == 1:
        return {"outcome": "failed", "error": {"type": "Closed", "message": "come back later", "retryable": True}}
    return doubled(task)


@pytest.mark.parametrize("instance", ["one", "-"])
def test_a_retry_is_sent_by_the_next_owner_once_and_not_early(rig: Rig, instance: str) -> None:
    """``one`` comes back under its name, with most of the time still ahead; else it is over before the group has moved on."""
    worker = rig.worker(fails_at_first)
    child = rig.child(instance=instance)
    rig.start("r", workflow="persistent", input=BACK_OFF_S)
    until(lambda: [row for row in rig.attempts("r") if row["phase"] == "finished"], within_ms=30_000, what="a failure")
    child.kill()
    assert [task["attempt"] for task in worker.tasks] == [1], "killed in the back-off"
    assert rig.run("r")["wake_at"] is not None
    following = rig.coordinator(instance=None if instance == "-" else instance)
    rig.until_status("completed", "r")
    rig.check()

    assert rig.run("r")["result"] == 2
    found = {(row["phase"], row["attempt"]): row for row in rig.attempts("r")}
    assert sorted(found) == [("dispatched", 1), ("dispatched", 2), ("finished", 1), ("finished", 2)]
    assert len(rig.attempts("r")) == 4
    waited = found["dispatched", 2]["at"] - found["finished", 1]["at"]
    assert waited >= timedelta(seconds=BACK_OFF_S), "by the owners' time, which is Postgres's"
    assert [task["attempt"] for task in worker.tasks] == [1, 2]
    assert (found["finished", 1]["outcome"], found["finished", 2]["outcome"]) == ("failed", "completed")
    assert following.count("ductor_attempts_dispatched", path="kafka") == 1
    following.stop()
