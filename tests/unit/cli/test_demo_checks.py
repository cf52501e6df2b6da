"""The demo's checks find what they are there to find."""

from __future__ import annotations

import pytest

from ductor_stream.cli.demo_checks import Check, faults_of, lost, shown
from ductor_stream.engine.events import AnyEvent, AttemptFinished, RunStarted
from ductor_stream.engine.state import AnyDecision, NodeCreated, Record

START = RunStarted("fulfil", "1", b"null", "s1")
Commit = tuple[int, int, str, list[Record]]


def done(node: str, generation: int = 1) -> AttemptFinished:
    return AttemptFinished(1, node, generation, "completed", b"1")


def commit(version: int, event: AnyEvent, *nodes: str, epoch: int = 1, seq: int | None = None) -> Commit:
    decisions: list[AnyDecision] = [NodeCreated(node, "step", "charge") for node in nodes]
    return version, epoch, f"tx{version}", [Record(1, seq or version, version, event, decisions)]


GOOD = [commit(1, START, "1"), commit(2, done("1"), "2", epoch=2), commit(3, done("2"), epoch=2)]


def test_a_good_history_has_no_fault() -> None:
    assert list(faults_of(GOOD, 3)) == []


@pytest.mark.parametrize(
    ("history", "record_version", "fault"),
    [
        (GOOD[:1] + GOOD[2:], 3, "its row has record_version 3"),
        (GOOD, 4, "its row has record_version 4"),
        ([*GOOD, commit(4, done("3"), epoch=1)], 4, "an older owner committed after a newer one"),
        ([*GOOD, commit(4, done("3"), seq=3, epoch=2)], 4, "an event was applied twice"),
        ([*GOOD, commit(4, done("2"), epoch=2)], 4, "node 2: generation 1 has 2 results"),
        ([*GOOD, commit(4, done("2", 2), epoch=2)], 4, "node 2 completed 2 times"),
        ([*GOOD, commit(4, done("3"), "2", epoch=2)], 4, "node 2 was created 2 times"),
    ],
)
def test_each_fault_is_found(history: list[Commit], record_version: int, fault: str) -> None:
    assert any(fault in found for found in faults_of(history, record_version))


def test_a_run_that_is_missing_or_open_or_never_ordered_is_found() -> None:
    runs = {"a": ("completed", 3), "b": ("running", 2), "x": ("completed", 1)}
    assert list(lost(runs, ["a", "b", "c"])) == ["b is running", "c is unknown to Postgres", "x was never ordered"]


def test_a_long_list_of_faults_is_cut() -> None:
    assert shown(Check("no run lost", [])) == "holds"
    assert shown(Check("no run lost", ["a", "b", "c", "d", "e"])) == "a; b; c and 2 more"
