"""A lost version check (architecture, step 6): what the losers' inputs become."""

from __future__ import annotations

import msgspec

from ductor_stream.coordinator.config import CoordinatorConfig
from ductor_stream.coordinator.conflict import Conflicts
from ductor_stream.coordinator.timers import Timers
from ductor_stream.coordinator.work import Entry, Work
from ductor_stream.engine.events import Proceed, TimerFired
from ductor_stream.errors import RecordVersionConflict
from ductor_stream.ports import InboxRow
from ductor_stream.protocol.inbox import decode_event, encode_event
from ductor_stream.telemetry.metrics import Metrics

CONFIG = CoordinatorConfig()


class StillClock:
    """All of it happens within one millisecond."""

    def now(self) -> int:
        return 1_900_000_000_000

    def sleep(self, seconds: float) -> None: ...


class NothingDue:
    """A store without timers."""

    def due_runs(self, *page: object) -> list[tuple[str, int]]:
        return []


def requeue(tries: int) -> InboxRow:
    """The row that another run's message becomes after its commit was lost too often in one turn."""
    rules = Conflicts(CONFIG, None, StillClock(), None, Metrics(), lambda: 0.0)  # type: ignore[arg-type]
    event = Proceed(1)
    entry = Entry("child", 3, event, inbox_body=encode_event("child", event), tries=tries)
    conflict = rules.begin(Work(entries=[entry]), Timers(None, 0))  # type: ignore[arg-type]
    for _ in range(CONFIG.conflict_tries + 1):
        conflict.lost(RecordVersionConflict(frozenset({"child"})))
    work, entries = conflict.attempt()
    assert entries == []
    (row,) = work.inbox
    return row


def test_a_message_that_is_requeued_again_is_another_row() -> None:
    """Its old row goes in the very commit that writes the new one: under the same name the message would be lost."""
    rows = [requeue(tries) for tries in range(3)]
    assert len({row.source for row in rows}) == 3
    assert [row.tries for row in rows] == [1, 2, 3]


def test_two_batches_within_one_millisecond_leave_rows_that_differ() -> None:
    """Rows of one name are one: of two messages that lose for the first time, one after the other, none is lost."""
    rules = Conflicts(
        msgspec.structs.replace(CONFIG, conflict_tries=0), None, StillClock(), None, Metrics(), lambda: 0.0
    )  # type: ignore[arg-type]
    sources = set[str]()
    for number in range(2):
        event = Proceed(number)
        entry = Entry("child", 3, event, inbox_body=encode_event("child", event))
        conflict = rules.begin(Work(entries=[entry]), Timers(None, 0))  # type: ignore[arg-type]
        conflict.lost(RecordVersionConflict(frozenset({"child"})))
        work, _ = conflict.attempt()
        sources |= {row.source for row in work.inbox}
    assert len(sources) == 2


def test_waits_for_a_locked_row_are_no_lost_version_checks() -> None:
    """Else a run whose row was locked for fifteen seconds is failed for the first check that it really loses."""
    rules = Conflicts(CONFIG, None, StillClock(), None, Metrics(), lambda: 0.0)  # type: ignore[arg-type]
    event = Proceed(1)
    entries = [Entry(id, 3, event, inbox_body=encode_event(id, event), tries=1) for id in ("child", "other")]
    conflict = rules.begin(Work(entries=entries), Timers(None, 0))  # type: ignore[arg-type]
    for _ in range(CONFIG.conflict_tries + 1):
        conflict.lost(RecordVersionConflict(frozenset({"child"}), locked=True))
    conflict.lost(RecordVersionConflict(frozenset({"other"})))
    work, kept = conflict.attempt()
    assert [(row.not_before is not None, row.tries) for row in work.inbox] == [(True, 1)]
    assert kept == entries[1:], "its first lost check: it is tried in place"


def test_what_came_from_the_inbox_keeps_its_place_there() -> None:
    """In a row anew it would come behind what the inbox had beyond the rows that were read."""
    no_tries = msgspec.structs.replace(CONFIG, conflict_tries=0)
    rules = Conflicts(no_tries, None, StillClock(), None, Metrics(), lambda: 0.0)  # type: ignore[arg-type]
    event = Proceed(1)
    entry = Entry("child", 3, event, inbox_body=encode_event("child", event), tries=2, row=17)
    conflict = rules.begin(Work(entries=[entry], consumed=[(3, 17)]), Timers(None, 0))  # type: ignore[arg-type]
    conflict.lost(RecordVersionConflict(frozenset({"child"})))
    work, entries = conflict.attempt()
    assert (entries, work.inbox, work.deferred) == ([], [], [(3, 17, StillClock().now() + 1_000, 3)])
    assert work.waiting == {"child": (3, StillClock().now() + 1_000)}


def test_a_loser_waits_longer_with_each_round_and_all_that_is_for_it_together() -> None:
    """The wakeup tiers: at once, then delayed. Who writes its row for a second by hand must not be why it is failed."""
    no_tries = msgspec.structs.replace(CONFIG, conflict_tries=0)
    rules = Conflicts(no_tries, None, StillClock(), None, Metrics(), lambda: 0.0)  # type: ignore[arg-type]
    waits = []
    for rounds in range(CONFIG.conflict_bound):
        entries = [
            Entry("child", 3, Proceed(tries), inbox_body=encode_event("child", Proceed(tries)), tries=tries)
            for tries in {rounds, 0}
        ]
        conflict = rules.begin(Work(entries=entries), Timers(None, 0))  # type: ignore[arg-type]
        conflict.lost(RecordVersionConflict(frozenset({"child"})))
        work, _ = conflict.attempt()
        (until,) = {row.not_before for row in work.inbox}
        waits.append(until and until - StillClock().now())
    assert waits == [None, 500, 1_000, 2_000, 4_000]


def test_what_waited_is_applied_before_what_was_made_meanwhile() -> None:
    """The owner's own: a time-out, say, of an attempt whose result has waited."""
    clock = StillClock()
    rules = Conflicts(CONFIG, None, clock, None, Metrics(), lambda: 0.0)  # type: ignore[arg-type]
    rules.waits.put_behind({"child": (3, 0)})
    waited, other = Entry("child", 3, Proceed(1), row=17), Entry("other", 3, Proceed(1))
    own = Entry("child", 3, Proceed(2))
    seen = []
    for ended in (False, True):
        work = Work(entries=[own, waited, other], inbox_read={3: (clock.now(), ended)})
        attempt, entries = rules.begin(work, Timers(None, 0)).attempt()  # type: ignore[arg-type]
        seen.append((entries, [decode_event(row.body) for row in attempt.inbox]))
    assert seen == [([waited, other], [("child", own.input)]), ([waited, other, own], [])]


def test_an_input_of_the_owners_own_is_one_row_with_its_count_however_often_it_is_made() -> None:
    """R9: its next owner goes on counting, and `runs show` sees that it waits."""
    no_tries = msgspec.structs.replace(CONFIG, conflict_tries=0)
    rules = Conflicts(no_tries, None, StillClock(), None, Metrics(), lambda: 0.0)  # type: ignore[arg-type]
    rows = []
    for tries in (0, 0, 3):
        entry = Entry("child", 3, TimerFired(1, "nap", 1), tries=tries, due_at=StillClock().now())
        conflict = rules.begin(Work(entries=[entry]), Timers(None, 0))  # type: ignore[arg-type]
        conflict.lost(RecordVersionConflict(frozenset({"child"})))
        work, entries = conflict.attempt()
        assert entries == []
        rows += work.inbox
    assert [(decode_event(row.body), row.tries) for row in rows] == [(("child", entry.input), n) for n in (1, 1, 4)]
    assert len({row.source for row in rows}) == 1


def test_a_timer_of_a_run_that_waits_already_is_made_again_when_its_wait_is_over() -> None:
    """No further row for it at each look; what was there when its row was found locked has one."""
    clock = StillClock()
    rules = Conflicts(CONFIG, None, clock, None, Metrics(), lambda: 0.0)  # type: ignore[arg-type]
    timers = Timers(NothingDue(), 60_000)  # type: ignore[arg-type]
    timers.open(3, clock.now())
    entry = Entry("child", 3, TimerFired(1, "nap", 1), due_at=clock.now())
    conflict = rules.begin(Work(entries=[entry]), timers)
    conflict.lost(RecordVersionConflict(frozenset({"child"}), locked=True))
    work, _ = conflict.attempt()
    assert [(row.not_before, row.tries) for row in work.inbox] == [(clock.now() + 500, 0)]
    assert timers.next_at() is None
    work, entries = rules.begin(Work(entries=[entry]), timers).attempt()
    assert (work.inbox, entries, timers.next_at()) == ([], [], clock.now() + 500)


def test_how_often_a_run_has_lost_in_this_batch_goes_with_each_try() -> None:
    rules = Conflicts(CONFIG, None, StillClock(), None, Metrics(), lambda: 0.0)  # type: ignore[arg-type]
    entries = [Entry(id, 3, Proceed(1)) for id in ("child", "other")]
    conflict = rules.begin(Work(entries=entries), Timers(None, 0))  # type: ignore[arg-type]
    told = [conflict.attempt()[0].lost]
    for losers in ({"child"}, {"child", "other"}):
        conflict.lost(RecordVersionConflict(frozenset(losers)))
        told.append(conflict.attempt()[0].lost)
    assert told == [{}, {"child": 1}, {"child": 2, "other": 1}]


def test_tries_in_place_back_off_ever_longer_and_each_owner_for_itself() -> None:
    """Two that lose to each other must not meet again at the same moment."""

    class Sleeper(StillClock):
        slept: list[float]

        def sleep(self, seconds: float) -> None:
            self.slept.append(round(seconds * 1000, 3))

    found = []
    for jitter in (0.0, 0.5):
        clock = Sleeper()
        clock.slept = []
        rules = Conflicts(CONFIG, None, clock, None, Metrics(), lambda jitter=jitter: jitter)  # type: ignore[arg-type, misc]
        conflict = rules.begin(Work(entries=[Entry("child", 3, Proceed(1))]), Timers(None, 0))  # type: ignore[arg-type]
        for _ in range(CONFIG.conflict_tries + 1):
            conflict.lost(RecordVersionConflict(frozenset({"child"})))
        found.append(clock.slept)
    assert found == [[20, 40, 80], [30, 60, 120]], "and none before it goes through the inbox"
