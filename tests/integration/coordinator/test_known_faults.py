"""Faults that other engines are known for, where they need the real servers (the whole list: docs/proof.md)."""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from rig import Rig
from rig_control import commits
from rig_worker import doubled, fence, silent
from support import until

from ductor_stream.coordinator.service import Coordinator
from ductor_stream.ports import InboxRow, Received

SIGNALS = 10_000
NAME = "coordinator-1"

IDS = [
    unicodedata.normalize("NFC", "café"),
    unicodedata.normalize("NFD", "café"),
    "مرحبا\u202eabc",
    "🎉👩‍👩‍👧",
    "a/b",
    "a%2Fb",
    "%",
    "two\nlines\r\t",
    " ",
    "..",
    "'; drop table eec_workflow_run; --",
    '{}:*?\\"',
    "x" * 512,
]
"""Each is a run of its own: no two are the same anywhere, however alike they look."""


def test_ids_of_every_kind(rig: Rig) -> None:
    """Runs of any id live, are signalled, and have idempotency keys that no other run has; bad ones harm nobody."""
    worker = rig.worker()
    rig.coordinator()
    rig.send(rig.topics.run_events, "", {"type": "run.start", "workflow": "chain", "input": 1})
    rig.send(rig.topics.run_events, "y" * 513, {"type": "run.start", "workflow": "chain", "input": 1})
    for run_id in IDS:
        rig.start(run_id, workflow="order", input=1)
        rig.signal(run_id, f"for {run_id}", signal_id=run_id[:200])
    rig.until_status("completed", *IDS)
    for run_id in IDS:
        assert rig.run(run_id)["result"] == [0, f"for {run_id}", 0]
    assert {task["run_id"] for task in worker.tasks} == set(IDS)
    assert len(worker.effects) == 2 * len(IDS)
    assert set(worker.effects.values()) == {1}
    until(lambda: len(rig.letters()) == 2, what="the letters of ids that are none")
    assert {letter.reason for letter in rig.letters()} == {"bad_key"}
    rig.check()


def test_a_heartbeat_of_a_superseded_attempt_keeps_the_new_one_not_alive(rig: Rig) -> None:
    """R8: the old worker goes on beating; the silence of the new one is noticed all the same."""
    rig.coordinator()
    worker = rig.worker(silent)
    rig.start("r", workflow="stubborn", input=None)

    def beating(task: dict[str, Any]) -> None:
        rig.send(rig.topics.attempt_results, "r", {"type": "attempt.heartbeat", **fence(task)})

    (old,) = until(lambda: list(worker.tasks), what="the first attempt")
    beating(old)
    new = until(lambda: worker.tasks[1:], what="the second attempt")[0]
    assert (old["generation"], new["generation"]) == (1, 2)
    beating(new)

    def ended() -> bool:
        beating(old)
        return rig.run("r")["status"] == "completed"

    until(ended, what="the second attempt given up")
    assert rig.run("r")["result"] == "heartbeat_lost"
    rig.check()


def test_thousands_of_signals_while_a_run_continues_as_new_in_a_loop(rig: Rig) -> None:
    """None lost, none twice, order kept, though its owner dies in the midst of it; the loop keeps going.

    A third of those that executions before had taken are sent again, among the new ones. Taken twice, one would be out of
    its order, a bug for this workflow.
    """
    child = rig.child("after-commit", instance=NAME)
    rig.start("e", workflow="tally", input=0)
    half = SIGNALS // 2
    rig.send(rig.topics.run_events, "e", *(_word(number) for number in range(1, half)))
    child.wait_dead()
    running = rig.coordinator(instance=NAME)
    until(lambda: rig.run("e")["execution"] > half // 6, within_ms=10 * SIGNALS, what="half of those taken")
    again = {half + 2 * number: number for number in range(1, half // 2, 3)}
    numbers = [each for new in range(half, SIGNALS) for each in (new, again.get(new)) if each is not None]
    rig.send(rig.topics.run_events, "e", *(_word(number) for number in (*numbers, 0)))
    rig.until_status("completed", "e", within_ms=30_000 + 20 * SIGNALS)
    run = rig.run("e")
    assert run["result"] == SIGNALS - 1
    assert run["execution"] == -(-SIGNALS // 3)
    assert running.count("ductor_duplicate_inputs", kind="signal") == len(again)
    stored = "select sum(octet_length(records)) as bytes from eec_workflow_transition where ns = {ns}"
    assert rig.rows(stored)[0]["bytes"] < 1_000 * SIGNALS, "not written again with each execution"
    rig.check()


def _word(number: int) -> dict[str, Any]:
    return {"type": "run.signal", "run_id": "e", "name": "word", "payload": str(number), "signal_id": f"s{number}"}


@pytest.mark.parametrize("cancelled_first", [True, False])
def test_a_child_that_finishes_while_its_parent_is_cancelled(rig: Rig, cancelled_first: bool) -> None:
    """In one batch: the parent ends once and for all, its child too, and nothing is left to send."""
    rig.worker(doubled)
    running = rig.coordinator()
    ids = [f"g{number}" for number in range(6)]
    for run_id in ids:
        rig.start(run_id, workflow="guardian", input="cancel")
    rig.until_status("running", *(f"{run_id}-child" for run_id in ids))
    running.stop()
    for run_id in ids:  # nobody is there: the next owner finds both
        if cancelled_first:
            rig.send(rig.topics.run_events, run_id, {"type": "run.cancel", "run_id": run_id})
        rig.signal(f"{run_id}-child", "done", signal_id="s")
        if not cancelled_first:
            rig.send(rig.topics.run_events, run_id, {"type": "run.cancel", "run_id": run_id})
    rig.coordinator()
    query = "select run_id, status from eec_workflow_run where ns = {ns} and closed_at is not null"

    def ended() -> dict[str, str]:
        found = {row["run_id"]: row["status"] for row in rig.rows(query)}
        return found if len(found) == 2 * len(ids) else {}

    statuses = until(ended, what="all ended")
    for run_id in ids:
        both = (statuses[run_id], statuses[f"{run_id}-child"])
        assert both in {("cancelled", "completed"), ("cancelled", "cancelled"), ("completed", "completed")}
        if both[0] == "completed":
            assert rig.run(run_id)["result"] == ["done"]
    rig.check()


class Meeting:
    """Keeps the inboxes shut, and what the log says of these runs of partition 0, until ``ready``: then all goes into one batch."""

    def __init__(self, run_ids: Sequence[str], records: int) -> None:
        self.ready = False
        self._keys = {run_id.encode() for run_id in run_ids}
        self._awaited = records
        self._kept: list[Received] = []
        self._open = False

    def __call__(self, coordinator: Coordinator) -> None:
        inbox, poll = coordinator.store.inbox, coordinator.log.poll

        def read(partition: int, limit: int, now: int) -> list[InboxRow]:
            self._open = self._open or (self.ready and partition == 0 and len(self._kept) == self._awaited)
            return inbox(partition, limit, now) if self._open else []

        def polled(timeout: float, limit: int) -> list[Received]:
            found = poll(timeout, limit)
            if self._open:
                found, self._kept = [*self._kept, *found], []
                return found
            held = [record for record in found if record.topic == "run-events" and record.key in self._keys]
            self._kept += held
            return [record for record in found if record not in held]

        coordinator.store.inbox = read  # type: ignore[method-assign]
        coordinator.log.poll = polled  # type: ignore[method-assign]


@pytest.mark.parametrize("first", ["outcome", "cancel"])
def test_a_childs_outcome_meets_the_cancel_of_its_parent_in_one_batch(rig: Rig, first: str) -> None:
    """Whichever is first decides, once and for all; no child is left open, and none that has ended is moved.

    The outcome is a row of the inbox, which is read before the log. A cancel that a foreign partitioner put elsewhere is sent
    home as a row too: then it may lie before the outcome.
    """
    ids = [run_id for run_id in (f"g{number}" for number in range(60)) if rig.home(run_id) == 0][:4]
    children = [f"{run_id}-child" for run_id in ids]
    by_log = first == "outcome"
    meeting = Meeting(ids if by_log else [], len(ids) if by_log else 0)
    running = rig.coordinator()
    rig.start(*ids, workflow="guardian", input="cancel")
    rig.until_status("running", *ids, *children)
    rig.check()
    running.stop()
    rig.coordinator(prepare=meeting)
    inbox = "select from eec_inbox where ns = {ns} and partition = 0"

    def cancel() -> None:
        where = {} if by_log else {"partition": 1}
        for run_id in ids:
            body = {"type": "run.cancel", "run_id": run_id, "command_id": "c"}
            rig.send(rig.topics.run_events, run_id, body, **where)

    if not by_log:
        cancel()
        until(lambda: len(rig.rows(inbox)) == len(ids), what="the cancels sent home")
    for run_id in children:
        rig.signal(run_id, "done", signal_id="s")
    rig.until_status("completed", *children)
    assert len(rig.rows(inbox)) == len(ids) * (1 if by_log else 2)
    assert {rig.run(run_id)["status"] for run_id in ids} == {"running"}
    if by_log:
        cancel()
    meeting.ready = True

    rig.until_status("completed" if by_log else "cancelled", *ids)
    rig.check()
    events = ["ChildFinished", "CommandReceived"]
    for run_id in ids:
        assert commits(rig, run_id)[1:] == [events if by_log else events[1:]], "in one batch; what is late is nothing"
        assert rig.run(run_id).get("result") == (["done"] if by_log else None)
    assert {rig.run(run_id)["status"] for run_id in children} == {"completed"}
    assert {tuple(rig.run(run_id)["result"]) for run_id in children} == {("done",)}
    told = {told.id: told for told in rig.told() if told.type not in ("run.started", "run.continued")}
    kinds = Counter((told.run_id.endswith("-child"), told.type) for told in told.values())
    ended, refused = ("run.completed" if by_log else "run.cancelled"), "command.rejected"
    expected = Counter({(False, ended): len(ids), (True, "run.completed"): len(ids)})
    expected[not by_log, refused] = len(ids)
    assert kinds == expected, "each has one end, and the order that came too late was refused"
