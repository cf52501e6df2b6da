"""A lost version check (architecture, step 6): what the losers' inputs become."""

from __future__ import annotations

import msgspec

from ductor_stream.coordinator.config import CoordinatorConfig
from ductor_stream.coordinator.conflict import Conflicts
from ductor_stream.coordinator.timers import Timers
from ductor_stream.coordinator.work import Entry, Work
from ductor_stream.engine.events import Proceed
from ductor_stream.errors import RecordVersionConflict
from ductor_stream.ports import InboxRow
from ductor_stream.protocol.inbox import encode_event
from ductor_stream.telemetry.metrics import Metrics

CONFIG = CoordinatorConfig()


class StillClock:
    """All of it happens within one millisecond."""

    def now(self) -> int:
        return 1_900_000_000_000

    def sleep(self, seconds: float) -> None: ...


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
