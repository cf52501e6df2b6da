"""Runs whose rows somebody else keeps locked: when they are looked at again, and what waits meanwhile."""

from __future__ import annotations

from collections.abc import Sequence

from ductor_stream.coordinator.waits import Waits
from ductor_stream.coordinator.work import Entry, Work
from ductor_stream.engine.events import Proceed
from ductor_stream.telemetry.metrics import Metrics

A, B = Entry("a", 1, Proceed(1)), Entry("b", 2, Proceed(1))
NOBODY: frozenset[str] = frozenset()
ALL_IN = (NOBODY, NOBODY, NOBODY)


class Ports:
    """Store and clock: which rows are locked, what time it is, and what was asked for."""

    def __init__(self) -> None:
        self.time, self.locked, self.asked = 0, {"a"}, list[Sequence[str]]()

    def now(self) -> int:
        return self.time

    def unlocked(self, run_ids: Sequence[str]) -> set[str]:
        self.asked.append(run_ids)
        return set(run_ids) - self.locked


def made() -> tuple[Waits, Ports]:
    ports = Ports()
    return Waits(ports, ports, Metrics()), ports  # type: ignore[arg-type]


def batch(ports: Ports, *entries: Entry, ended: bool = True) -> Work:
    """One whose inboxes have been read just now, to their ends or not."""
    return Work(entries=list(entries), inbox_read={partition: (ports.time, ended) for partition in (1, 2)})


def test_nothing_is_asked_while_no_row_is_known_to_be_locked() -> None:
    runs, ports = made()
    assert runs.among(batch(ports, A, B)) == ALL_IN
    assert (runs.come_due(), ports.asked) == (set(), [])


def test_a_row_is_looked_at_ever_more_rarely_and_let_go_when_it_is_free() -> None:
    runs, ports = made()
    runs.found([A, B], {"a"})
    waits = []
    for _ in range(8):
        until = runs.until("a")
        assert until is not None
        ports.time = until - 1
        assert runs.among(batch(ports, A, B)) == ({"a"}, NOBODY, NOBODY), "not asked before its time"
        waits.append(until - waits[-1] if waits else until)
        ports.time = until
        assert runs.come_due() == {1}
        assert runs.among(batch(ports, A, B)) == ({"a"}, NOBODY, NOBODY)
    assert len(ports.asked) == 8
    latest = runs.until("a")
    assert latest is not None
    assert latest - ports.time == 15_000
    ports.time, ports.locked = latest, set()
    runs.come_due()
    assert runs.among(batch(ports, A, B)) == (NOBODY, NOBODY, {"a"})
    assert runs.until("a") is None


def test_a_wait_that_passes_during_a_poll_ends_when_what_waits_is_handed_out() -> None:
    """Else what has just come would be applied before it."""
    runs, ports = made()
    runs.found([A], {"a"})
    ports.time, ports.locked = 499, set()
    assert runs.come_due() == set()
    polled = batch(ports, A)
    ports.time = 501
    assert runs.among(polled) == ({"a"}, NOBODY, NOBODY)
    assert runs.come_due() == {1}
    assert runs.among(batch(ports, A)) == (NOBODY, NOBODY, {"a"})


def test_what_is_new_stays_behind_until_the_inbox_was_read_to_its_end() -> None:
    runs, ports = made()
    runs.found([A], {"a"})
    ports.time, ports.locked = 500, set()
    for _ in range(3):
        assert runs.among(batch(ports, A, ended=False)) == (NOBODY, {"a"}, NOBODY)
    assert runs.among(Work(entries=[A])) == ({"a"}, NOBODY, NOBODY), "the inbox was not looked at"
    assert runs.among(batch(ports, A)) == (NOBODY, NOBODY, {"a"})


def test_a_run_that_waits_for_no_lock_is_not_asked_for() -> None:
    """What lost its version check comes again at once, what cannot be read at its time."""
    runs, ports = made()
    runs.put_behind({"a": (1, 0), "b": (2, 700)})
    assert runs.come_due() == {1}
    assert runs.among(batch(ports, A, B)) == ({"b"}, NOBODY, {"a"})
    ports.time = 700
    runs.put_behind({"b": (2, 600)})
    assert runs.among(batch(ports, B)) == (NOBODY, NOBODY, {"b"})
    assert ports.asked == []


def test_a_wait_ends_though_nothing_has_come_for_it() -> None:
    """Its timer was cancelled, say: else the inbox would be read at every turn for ever."""
    runs, ports = made()
    runs.found([A], {"a"})
    ports.time = 500
    runs.among(batch(ports))
    assert runs.come_due() == set()


def test_a_partition_that_goes_takes_its_runs_along() -> None:
    runs, _ = made()
    runs.found([A, B], {"a", "b"})
    runs.forget([1])
    assert (runs.until("a"), runs.until("b")) == (None, 500)
