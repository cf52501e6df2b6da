"""Which runs are folded, when, and what the summary says (R10)."""

from __future__ import annotations

from typing import Any
from unittest.mock import Mock

from ductor_stream.coordinator.compaction import Compaction, summed
from ductor_stream.coordinator.config import CoordinatorConfig
from ductor_stream.engine.events import Proceed, SignalReceived
from ductor_stream.engine.state import Record, encode_records
from ductor_stream.ports import Foldable, Folded, RunWrite
from ductor_stream.telemetry.metrics import Metrics

SIGNAL = SignalReceived("s", "word", b"1")


def write(version: int, journal_from: int) -> Any:
    """A commit of the run ``r`` that made this version of it."""
    return Mock(spec=RunWrite, run_id="r", partition=0, expected=version - 1, journal_from=journal_from)


def entry(version: int, *events: Any, execution: int = 1) -> tuple[int, int, int, bytes]:
    """A transition with these events."""
    records = [Record(execution, number, version, event) for number, event in enumerate(events)]
    return (version, execution, 1_000 + version, encode_records(records))


class Store:
    """Says what it was asked for."""

    def __init__(self, rows: int) -> None:
        self.rows = [entry(version, SIGNAL) for version in range(1, rows + 1)]
        self.folded = Folded()
        self.asked: list[int] = []
        self.attempts = 0

    def foldable(self, run_id: str, below: int, limit: int, size: int) -> Foldable:
        self.asked.append(below)
        found = [row for row in self.rows if self.folded.upto < row[0] < below]
        return Foldable(self.folded, found[:limit])

    def drop_attempts(self, fence: Any, run_id: str, execution: int, limit: int) -> int:
        going = min(limit, self.attempts)
        self.attempts -= going
        return going

    def fold(self, fence: Any, run_id: str, before: int, folded: Folded) -> bool:
        assert before == self.folded.upto
        self.folded = folded
        return True


def made(store: Store, kept: int) -> tuple[Compaction, Mock]:
    clock = Mock(monotonic=Mock(return_value=0.0))
    config = CoordinatorConfig(history_kept=kept)
    return Compaction(config, (store, clock), Metrics()), clock  # type: ignore[arg-type]


OWNED: Any = {0: Mock(token="t", epoch=3)}


def test_nothing_is_asked_for_while_a_run_goes_on_in_one_execution() -> None:
    """The hot path pays a comparison: no matter how long the execution, and while earlier ones are short."""
    store = Store(0)
    compaction, _ = made(store, kept=100)
    compaction.note([write(version, 1) for version in range(1, 500)])
    compaction.note([write(150, 150), write(151, 150)])
    compaction.work(OWNED, idle=True)
    assert store.asked == []


def test_a_new_execution_leaves_history_to_fold_and_it_is_folded_page_by_page() -> None:
    store = Store(1_000)
    compaction, _ = made(store, kept=100)
    compaction.note([write(501, 501)])
    for _ in range(6):
        compaction.work(OWNED, idle=True)
    assert store.folded == Folded(400, 1, 1_001, 1_400, {"signal": 400})
    compaction.note([write(590, 590)])
    compaction.work(OWNED, idle=True)
    assert store.folded.upto == 400, "not for less than a page"
    compaction.note([write(602, 602)])
    compaction.work(OWNED, idle=True)
    assert store.folded.upto == 500


def test_what_an_execution_has_tried_goes_by_turns_before_its_history() -> None:
    """A fan-out may have left hundreds of thousands of rows: no turn deletes them all."""
    store = Store(0)
    store.rows = [entry(version, SIGNAL, execution=1 + version // 50) for version in range(1, 201)]
    store.attempts = 5_000
    compaction, _ = made(store, kept=100)
    compaction.note([write(201, 201)])
    seen = []
    for _ in range(4):
        compaction.work(OWNED, idle=True)
        seen.append((store.attempts, store.folded.upto))
    assert seen == [(3_000, 0), (1_000, 0), (0, 100), (0, 100)]


def test_work_that_waits_goes_first() -> None:
    store = Store(1_000)
    compaction, clock = made(store, kept=100)
    compaction.note([write(501, 501)])
    compaction.work(OWNED, idle=False)
    for _ in range(5):
        compaction.work(OWNED, idle=False)
    assert store.folded.upto == 100
    clock.monotonic.return_value = 1.0
    compaction.work(OWNED, idle=False)
    assert store.folded.upto == 200


def test_a_partition_that_has_gone_is_somebody_elses_affair() -> None:
    store = Store(1_000)
    compaction, _ = made(store, kept=100)
    compaction.note([write(501, 501)])
    compaction.work({}, idle=True)
    compaction.work(OWNED, idle=True)
    assert store.asked == []


def test_history_that_cannot_be_read_stays_and_stops_nothing() -> None:
    """Of a newer release, or damaged: its run alone keeps it (R11)."""
    store = Store(1_000)
    store.rows[7] = (*store.rows[7][:3], b"\xc1 no MessagePack")
    compaction, _ = made(store, kept=100)
    compaction.note([write(501, 501)])
    compaction.work(OWNED, idle=True)
    compaction.work(OWNED, idle=True)
    assert (store.folded, store.asked) == (Folded(), [401])


def test_the_summary_adds_up() -> None:
    before = Folded(2, 1, 500, 600, {"signal": 2})
    rows = [entry(3, SIGNAL, Proceed(1)), entry(4, SIGNAL, execution=2)]
    assert summed(Foldable(before, rows)) == Folded(4, 2, 500, 1_004, {"signal": 4, "proceed": 1})
