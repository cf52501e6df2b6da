"""A record_version that moves under its owner, by SQL: retried, sent through the inbox, or failed visibly (protocol 18)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

import psycopg
import pytest
from rig import Rig
from support import until

from ductor_stream.coordinator.service import Coordinator
from ductor_stream.errors import RecordVersionConflict
from ductor_stream.ports import Batch

BUMP = "update eec_workflow_run set record_version = record_version + 1 where run_id = 'victim'"


class Rival:
    """Gets in first with the next ``times`` commits that concern the run ``victim``, unless its row is locked."""

    def __init__(self, rig: Rig, times: float) -> None:
        self.left = times
        self.locked_out = 0
        self.tries: list[int] = []
        """``tries`` of the inbox rows that the owner wrote."""
        self._connection = psycopg.connect(rig.database, autocommit=True)
        self._connection.execute("set lock_timeout = '100ms'")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def __call__(self, coordinator: Coordinator) -> None:
        commit = coordinator.store.commit

        def wrapped(batch: Batch) -> int:
            self.tries += [row.tries for row in batch.inbox if row.kind == "event" and row.tries]
            if self.left > 0 and any(run.run_id == "victim" and run.expected for run in batch.runs):
                self._bump()
            return commit(batch)

        coordinator.store.commit = wrapped  # type: ignore[method-assign]

    def _bump(self) -> None:
        try:
            self._connection.execute(BUMP)
            self.left -= 1
        except psycopg.errors.LockNotAvailable:
            self.locked_out += 1


def neighbours(rig: Rig) -> list[str]:
    """Runs of the victim's partition."""
    return [run_id for run_id in (f"r{n}" for n in range(60)) if rig.home(run_id) == rig.home("victim")][:8]


def under_way(rig: Rig, words: int = 2) -> list[str]:
    """The victim waits for so many words, its neighbours for one."""
    others = neighbours(rig)
    rig.start("victim", workflow="words", input=words)
    rig.start(*others, workflow="words", input=1)
    rig.until_status("running", "victim", *others)
    return others


def all_at_once(rig: Rig, others: list[str]) -> None:
    """Signals for all, the victim's in the midst."""
    for run_id in [*others[:4], "victim", *others[4:]]:
        rig.signal(run_id, "a", signal_id="a")
    rig.signal("victim", "b", signal_id="b")


def test_once_is_tried_again_in_place(rig: Rig) -> None:
    """R3, protocol 17: reloaded and ticked again, the coroutine rebuilt by replay."""
    running = rig.coordinator()
    others = under_way(rig)
    rig.rows(BUMP)
    all_at_once(rig, others)
    rig.until_status("completed", "victim", *others)
    assert rig.run("victim")["result"] == ["a", "b"]
    assert running.count("ductor_conflicts") == 1
    rig.check("victim")


def test_several_times_goes_through_the_inbox(rig: Rig) -> None:
    """R6, protocol 18: winners land, losers' events wait as rows with the count carried along, in their order."""
    with Rival(rig, 0) as rival:
        running = rig.coordinator(prepare=rival)
        others = under_way(rig)
        rival.left = 10
        all_at_once(rig, others)
        rig.until_status("completed", "victim", *others)
        assert rig.run("victim")["result"] == ["a", "b"]
        assert {1, 2} <= set(rival.tries)
        assert running.count("ductor_livelocks") == 0
        rig.check("victim")


def test_for_ever_is_failed_visibly(rig: Rig) -> None:
    """R9, R11, protocol 18: past the bound it is failed under its row lock, which the rival cannot get past."""
    with Rival(rig, 0) as rival:
        running = rig.coordinator(prepare=rival)
        others = under_way(rig)
        rival.left = 1 << 30
        all_at_once(rig, others)
        rig.until_status("completed", *others)
        rig.until_status("failed", "victim")
        assert rig.run("victim")["error"]["code"] == "conflict_livelock"
        assert "record_version" in rig.run("victim")["error"]["message"]
        assert rival.locked_out >= 1
        assert max(rival.tries) == 5
        assert running.count("ductor_livelocks") == 1
        assert running.count("ductor_runs_closed", outcome="failed") == 1
        rig.check("victim")


def test_a_timer_that_loses_for_ever_is_no_exception(rig: Rig) -> None:
    """R9: what the owner itself makes, and no row carries on, is counted all the same."""
    with Rival(rig, 0) as rival:
        running = rig.coordinator(prepare=rival)
        rig.start("victim", workflow="nap", input=400)
        rig.until_status("running", "victim")
        rival.left = 1 << 30
        rig.until_status("failed", "victim")
        assert rig.run("victim")["error"]["code"] == "conflict_livelock"
        assert running.count("ductor_livelocks") == 1
        rig.check("victim")


def hasty(coordinator: Any) -> None:
    """Waits for a lock a tenth of a second instead of three."""
    coordinator.store._connection.execute("set lock_timeout = '100ms'")


@pytest.mark.parametrize("hold", ["shortly", "for long"])
def test_a_row_that_somebody_keeps_locked(rig: Rig, hold: str) -> None:
    """R11, protocol 23: one batch has waited for it; neighbours and their owner go on, and the run when its row is free."""
    waited: list[frozenset[str]] = []

    def watched(coordinator: Any) -> None:
        hasty(coordinator)
        commit: Callable[[Batch], int] = coordinator.store.commit

        def wrapped(batch: Batch) -> int:
            try:
                return commit(batch)
            except RecordVersionConflict as conflict:
                waited.append(conflict.run_ids)
                raise

        coordinator.store.commit = wrapped

    running = rig.coordinator(prepare=watched)
    words = ["a", "b"] if hold == "shortly" else ["a", "b", "c", "d", "e"]
    others = under_way(rig, len(words))
    with psycopg.connect(rig.database) as other:
        other.execute("select from eec_workflow_run where run_id = 'victim' for update")
        all_at_once(rig, others)
        rig.until_status("completed", *others)
        for word in words[2:]:
            rig.signal("victim", word, signal_id=word)
            rig.start(f"{others[0]}-{word}", workflow="words", input=0)
            rig.until_status("completed", f"{others[0]}-{word}")
        if hold == "for long":
            until(lambda: running.count("ductor_conflicts") >= 4, within_ms=30_000, what="looked at now and then")
        assert rig.run("victim")["status"] == "running"
        assert waited == [{"victim"}]
    rig.until_status("completed", "victim")
    assert rig.run("victim")["result"] == words
    assert running.alive
    rig.check()


def test_a_timer_whose_run_is_locked_fires_when_its_row_is_free(rig: Rig) -> None:
    """R9: what no row carries is made again when the run is looked at again."""
    rig.worker()
    running = rig.coordinator(prepare=hasty)
    rig.start("victim", workflow="nap", input=400)
    rig.until_status("running", "victim")
    with psycopg.connect(rig.database) as other:
        other.execute("select from eec_workflow_run where run_id = 'victim' for update")
        until(lambda: running.count("ductor_conflicts") >= 2, within_ms=30_000, what="met, and looked at again")
    rig.until_status("completed", "victim")
    rig.check()
