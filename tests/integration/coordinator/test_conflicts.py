"""A record_version that moves under its owner, by SQL: retried, sent through the inbox, or failed visibly (protocol 18)."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Self

import psycopg
import pytest
from click.testing import CliRunner
from rig import Rig
from rig_services import Running
from support import until

from ductor_stream.cli.runs import runs
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
            self.tries += [tries for *_, tries in batch.deferred]
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


@contextmanager
def locked_row(rig: Rig) -> Iterator[None]:
    """Another session keeps the victim's row locked."""
    with psycopg.connect(rig.database) as other:
        other.execute("select from eec_workflow_run where run_id = 'victim' for update")
        yield


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


@pytest.mark.moves("ductor_conflicts")
def test_once_is_tried_again_in_place(rig: Rig) -> None:
    """R3, protocol 17: reloaded and ticked again, the coroutine rebuilt by replay."""
    running = rig.coordinator()
    others = under_way(rig)
    rig.rows(BUMP)
    all_at_once(rig, others)
    rig.until_status("completed", "victim", *others)
    assert rig.run("victim")["result"] == ["a", "b"]
    assert running.count("ductor_conflicts") == 1
    assert contended(rig) == ["its record_version moved under its owner: 1 time(s) just now"]
    rig.check("victim")


def test_several_times_goes_through_the_inbox(rig: Rig) -> None:
    """R6, protocol 18: winners land, losers' events wait as rows with the count carried along, in their order."""
    shown: list[str] = []

    def watched(coordinator: Coordinator) -> None:
        rival(coordinator)
        commit = coordinator.store.commit

        def wrapped(batch: Batch) -> int:
            seq = commit(batch)
            if any(row.kind == "event" and row.tries for row in batch.inbox):
                shown.append(why(rig, "victim"))  # before anybody looks at the inbox again
            return seq

        coordinator.store.commit = wrapped  # type: ignore[method-assign]

    with Rival(rig, 0) as rival:
        running = rig.coordinator(prepare=watched)
        others = under_way(rig)
        rival.left = 10
        all_at_once(rig, others)
        rig.until_status("completed", "victim", *others)
        assert rig.run("victim")["result"] == ["a", "b"]
        assert {1, 2} <= set(rival.tries)
        assert running.count("ductor_livelocks") == 0
        rig.check("victim")
        assert re.search(r"owner: .*[12] input\(s\) waited in the inbox, 2 time\(s\) at most", contended(rig)[-1])
        lost = r"[12] input\(s\) wait in the inbox: something else writes its row, version checks were lost in 1 round\(s\); "
        assert re.match(lost + "signal word is missing", shown[0]), shown


@pytest.mark.moves("ductor_livelocks")
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
        (failed,) = (event.data for event in rig.told() if (event.run_id, event.type) == ("victim", "run.failed"))
        assert failed["error"]["code"] == "conflict_livelock"
        found = json.loads(shown(rig, "victim", "--json"))
        assert (found["status"], found["error"]["code"]) == ("failed", "conflict_livelock")
        assert "ductor-stream explain conflict_livelock" in shown(rig, "victim"), "to people too"


def test_a_timer_that_loses_for_ever_is_no_exception(rig: Rig) -> None:
    """R9: what the owner itself makes goes through the inbox like what comes from outside, is counted and told."""
    with Rival(rig, 0) as rival:
        running = rig.coordinator(prepare=rival)
        rig.start("victim", workflow="nap", input=400)
        rig.until_status("running", "victim")
        rival.left = 1 << 30
        rig.until_status("failed", "victim")
        assert rig.run("victim")["error"]["code"] == "conflict_livelock"
        assert running.count("ductor_livelocks") == 1
        assert max(rival.tries) == 5
        assert rig.run("victim")["error"]["message"] == "its record_version moved under its owner in 5 rounds"
        assert "1 input(s) waited in the inbox, 5 time(s) at most" in contended(rig)[-1]
        assert waiting(rig) == 0
        rig.check("victim")


def contended(rig: Rig) -> list[str]:
    """What the victim's lifecycle tells of lost version checks."""
    told = [event for event in rig.told() if event.type == "run.contended"]
    assert {event.run_id for event in told} <= {"victim"}
    return [event.data["reason"] for event in told]


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
    with locked_row(rig):
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
    """R9: it waits in the inbox like what comes from outside, and `runs show` says so."""
    rig.worker()
    running = rig.coordinator(prepare=hasty)
    rig.start("victim", workflow="nap", input=400)
    rig.until_status("running", "victim")
    with locked_row(rig):
        until(lambda: running.count("ductor_conflicts") >= 2, within_ms=30_000, what="met, and looked at again")
        assert why(rig, "victim").startswith("1 input(s) wait in the inbox until 20")
        assert "another session keeps its row locked" in why(rig, "victim")
        assert waiting(rig) == 1, "however often it was looked at"
    rig.until_status("completed", "victim")
    rig.check()


def many_words(rig: Rig, numbers: Iterable[int]) -> None:
    """Signals to the victim, all on their way at once."""
    bodies = [{"type": "run.signal", "run_id": "victim", "name": "word", "payload": f"{n}"} for n in numbers]
    rig.send(rig.topics.run_events, "victim", *bodies)


def shown(rig: Rig, run_id: str, *options: str) -> str:
    """What ``runs show`` prints."""
    where = ["--database", rig.database, "--namespace", rig.namespace]
    return CliRunner().invoke(runs, ["show", run_id, *where, *options], catch_exceptions=False).output


def why(rig: Rig, run_id: str) -> str:
    """Why the run waits, in the words of ``runs show``."""
    return str(json.loads(shown(rig, run_id, "--json"))["waiting_for"])


def waiting(rig: Rig) -> int:
    """How many rows the inbox has."""
    return int(rig.rows("select count(*) as n from eec_inbox where ns = {ns}")[0]["n"])


def put_off(rig: Rig, running: Running, numbers: range, looks: int) -> None:
    """Words for a run whose row is locked: return when all of them wait, and the row was looked at so often."""
    many_words(rig, numbers)
    until(lambda: waiting(rig) == len(numbers), what="all of them wait")
    until(lambda: running.count("ductor_conflicts") >= looks, within_ms=30_000, what="looked at again")


FEW = {"inbox_limit": 7, "batch_limit": 20}
"""An inbox that takes many looks to be read to its end."""


def test_however_many_wait_for_a_locked_row_none_is_overtaken(rig: Rig) -> None:
    """R6: more than one look at the inbox finds, and newer ones that come while they are being applied."""
    running = rig.coordinator(rig.fast(**FEW), prepare=hasty)
    rig.start("victim", workflow="words", input=300)
    rig.until_status("running", "victim")
    assert "inbox" not in why(rig, "victim")
    with locked_row(rig):
        put_off(rig, running, range(100), looks=2)
        assert why(rig, "victim").startswith("100 input(s) wait in the inbox until 20")
        assert "another session keeps its row locked" in why(rig, "victim")
        many_words(rig, range(100, 150))
        until(lambda: waiting(rig) == 150, what="these too")
    for first in range(150, 300, 10):
        many_words(rig, range(first, first + 10))
    rig.until_status("completed", "victim")
    assert rig.run("victim")["result"] == [f"{n}" for n in range(300)]
    assert waiting(rig) == 0
    rig.check()


def test_however_many_lose_their_version_check_none_is_overtaken(rig: Rig) -> None:
    """R6, protocol 18: rounds through an inbox that is read in parts, with newer ones from Kafka at every turn."""
    with Rival(rig, 0) as rival:
        running = rig.coordinator(rig.fast(**FEW, conflict_bound=1 << 20), prepare=rival)
        rig.start("victim", workflow="words", input=200)
        rig.until_status("running", "victim")
        rival.left = 40
        for first in range(0, 200, 20):
            many_words(rig, range(first, first + 20))
        rig.until_status("completed", "victim")
        assert rig.run("victim")["result"] == [f"{n}" for n in range(200)]
        assert rival.left == 0
        assert max(rival.tries) > 2
        assert running.count("ductor_livelocks") == 0
        rig.check("victim")


def test_what_waits_is_not_overtaken_when_the_owner_changes(rig: Rig) -> None:
    """R6: the next owner knows nothing of the lock, finds the row free, and newer input in the log."""
    running = rig.coordinator(rig.fast(**FEW), prepare=hasty)
    rig.start("victim", workflow="words", input=80)
    rig.until_status("running", "victim")
    with locked_row(rig):
        put_off(rig, running, range(40), looks=3)
        running.stop()
        many_words(rig, range(40, 60))
    rig.coordinator(rig.fast(**FEW))
    many_words(rig, range(60, 80))
    rig.until_status("completed", "victim")
    assert rig.run("victim")["result"] == [f"{n}" for n in range(80)]
    rig.check()


def test_a_result_that_waits_is_applied_before_its_attempt_is_given_up(rig: Rig) -> None:
    """Protocol 20: its deadline passes while the row is locked; the answer had come in time."""
    running = rig.coordinator(prepare=hasty)
    rig.start("victim", workflow="timed", input={"schedule_to_close": 1.5})
    until(lambda: rig.attempts("victim"), what="dispatched")
    with locked_row(rig):
        rig.worker()
        until(lambda: waiting(rig) == 1, what="its result waits")
        until(lambda: running.count("ductor_conflicts") >= 4, within_ms=30_000, what="its deadline has passed")
    rig.until_status("completed", "victim")
    assert rig.run("victim")["result"] == "result 2"
    rig.check()
