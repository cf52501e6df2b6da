"""Protocol 6: an owner that was frozen in mid-transaction, and was ended there, wakes: its batch is nobody's any more."""

from __future__ import annotations

import signal
from typing import Any

import pytest
from rig import Rig
from support import until

IDS = [f"r{n}" for n in range(6)]


def written(rig: Rig) -> list[dict[str, Any]]:
    """All that is known of these runs, but for late results: what was redriven may be answered twice at any time (R8)."""
    queries = (
        "select run_id, record_version, status, state, result from eec_workflow_run where ns = {ns}",
        "select run_id, record_version, txid::text, epoch, records from eec_workflow_transition where ns = {ns}",
        "select run_id, node_id, generation, phase, at from eec_workflow_step_attempt where ns = {ns} and phase <> 'late'",
    )
    rows = [row for query in queries for row in rig.rows(f"{query} and run_id = any(%s) order by 1, 2, 3, 4", IDS)]
    assert len(rows) > 3 * len(IDS)
    return rows


def at_peace(rig: Rig) -> bool:
    """Whether nobody has taken a partition from another for a while, by Postgres's clock. A take is followed by the next in
    1 s where two fight."""
    query = "select count(*) n from eec_partition where ns = {ns} and taken_at > clock_timestamp() - interval '5 s'"
    return rig.rows(query) == [{"n": 0}]


@pytest.mark.parametrize("instance", ["one", None])
def test_an_owner_ended_in_mid_transaction_wakes_and_changes_nothing(rig: Rig, instance: str | None) -> None:
    """Its batch is nobody's any more; it ends or takes what the group gives it, also where another has come under its name."""
    rig.worker()
    child = rig.child("freeze-in-transaction", instance=instance or "-")
    rig.start(*IDS)
    child.until_said("freezes")
    standby = rig.coordinator(instance=instance, ready=False)
    until(lambda: standby.owned == {0, 1}, within_ms=30_000, what="the standby owning everything")
    rig.until_status("completed", *IDS)
    rig.check()
    before = written(rig)

    child.process.send_signal(signal.SIGCONT)
    heard = ("lost [", "fenced", "the answer to a commit was lost")
    until(
        lambda: child.process.poll() is not None or any(map(child.said, heard)), within_ms=30_000, what="that it hears"
    )
    rig.start("after-1", "after-2", "after-3")
    rig.until_status("completed", "after-1", "after-2", "after-3", within_ms=60_000)
    rig.check()
    assert written(rig) == before
    until(lambda: at_peace(rig), within_ms=20_000, what="peace")
    until(lambda: standby.reasons() == [], within_ms=20_000, what="a standby that is ready")
