"""Runs whose rows somebody else keeps locked: when they are looked at again, and what waits meanwhile."""

from __future__ import annotations

from collections.abc import Sequence

from ductor_stream.coordinator.locked import LockedRuns
from ductor_stream.coordinator.work import Entry
from ductor_stream.engine.events import Proceed
from ductor_stream.telemetry.metrics import Metrics

A, B = Entry("a", 1, Proceed(1)), Entry("b", 2, Proceed(1))


class Ports:
    """Store and clock: which rows are locked, what time it is, and what was asked for."""

    def __init__(self) -> None:
        self.time, self.locked, self.asked = 0, {"a"}, list[Sequence[str]]()

    def now(self) -> int:
        return self.time

    def unlocked(self, run_ids: Sequence[str]) -> set[str]:
        self.asked.append(run_ids)
        return set(run_ids) - self.locked


def made() -> tuple[LockedRuns, Ports]:
    ports = Ports()
    return LockedRuns(ports, ports, Metrics()), ports  # type: ignore[arg-type]


def test_nothing_is_asked_while_no_row_is_known_to_be_locked() -> None:
    runs, ports = made()
    assert runs.among([A, B]) == frozenset()
    assert (runs.come_due(), ports.asked) == ((set(), []), [])


def test_a_row_is_looked_at_ever_more_rarely_and_let_go_when_it_is_free() -> None:
    runs, ports = made()
    runs.found([A, B], {"a"})
    waits = []
    for _ in range(8):
        until = runs.until("a")
        assert until is not None
        ports.time = until - 1
        assert runs.among([A, B]) == {"a"}, "not asked before its time"
        waits.append(until - waits[-1] if waits else until)
        ports.time = until
        assert runs.come_due() == ({1}, [])
        assert runs.among([A, B]) == {"a"}
    assert len(ports.asked) == 8
    latest = runs.until("a")
    assert latest is not None
    assert latest - ports.time == 15_000
    ports.time, ports.locked = latest, set()
    runs.come_due()
    assert runs.among([A, B]) == frozenset()
    assert runs.until("a") is None


def test_what_no_row_carries_is_kept_once_and_given_back_once() -> None:
    runs, ports = made()
    runs.found([A, B], {"a"})
    runs.keep([A, A, B])
    assert runs.come_due() == (set(), [])
    ports.time = 500
    assert runs.come_due() == ({1}, [A])
    assert runs.come_due() == (set(), [])


def test_a_wait_that_passes_during_a_poll_ends_when_what_waits_is_handed_out() -> None:
    """Else what has just come would be applied before it, and the owner's own inputs would be gone."""
    runs, ports = made()
    runs.found([A], {"a"})
    runs.keep([A])
    ports.time, ports.locked = 499, set()
    assert runs.come_due() == (set(), [])
    ports.time = 501
    assert runs.among([A]) == {"a"}
    assert runs.come_due() == ({1}, [A])
    assert runs.among([A]) == frozenset()


def test_a_partition_that_goes_takes_its_runs_along() -> None:
    runs, _ = made()
    runs.found([A, B], {"a", "b"})
    runs.forget([1])
    assert (runs.until("a"), runs.until("b")) == (None, 500)
