"""Deliberate bugs, each a fault that a reviewer might let pass, patched into the product from outside.

``BUGS`` maps a name to a context manager; while it is open, the product has that bug.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any
from unittest.mock import patch

import msgspec

from ductor_stream.client import lifecycle_feed
from ductor_stream.coordinator import (
    commit,
    conflict,
    dispatch,
    intake,
    ownership,
    service,
    suspects,
    takeover,
    watchdog,
    work,
)
from ductor_stream.coordinator.cache import RunCache
from ductor_stream.coordinator.caught_up import CaughtUp
from ductor_stream.coordinator.ticking import Ticker
from ductor_stream.coordinator.timers import Timers
from ductor_stream.engine import fork, tick
from ductor_stream.engine.actions import TellParent
from ductor_stream.engine.reduce import attempt
from ductor_stream.errors import CommitOutcomeUnknown
from ductor_stream.protocol import writing
from ductor_stream.testing.simulation.memory_database import Database
from ductor_stream.worker import deliveries, ledger, outlet

BUGS: dict[str, Callable[[], AbstractContextManager[None]]] = {}


def _bug(target: Any, name: str) -> Callable[[Callable[..., Any]], None]:
    """The decorated function, given the original one, makes the one that takes its place."""

    def declare(make: Callable[..., Any]) -> None:
        @contextmanager
        def opened() -> Iterator[None]:
            with patch.object(target, name, make(getattr(target, name))):
                yield

        BUGS[make.__name__] = opened

    return declare


# -- commit and dispatch ------------------------------------------------------------------


@_bug(service.Coordinator, "commit")
def dispatch_before_commit(original: Any) -> Any:
    def changed(self: Any, prepared: Any) -> int:
        self.dispatch(prepared)
        now: int = original(self, prepared)
        return now

    return changed


@_bug(service.Coordinator, "commit")
def commit_resubmitted_after_an_unknown_outcome_with_offsets_stored_blindly(original: Any) -> Any:
    def changed(self: Any, prepared: Any) -> int:
        try:
            now: int = original(self, prepared)
        except CommitOutcomeUnknown:
            self.store.reconnect()
            for advance in prepared.batch.partitions:
                row = self.store.database.partitions[advance.partition]
                row.offsets, row.token, row.epoch = advance.previous, advance.token, advance.epoch
            now = original(self, prepared)
        return now

    return changed


@_bug(service.Coordinator, "guarded_turn")
def batch_given_up_for_committed_after_an_unknown_outcome(original: Any) -> Any:
    def changed(self: Any) -> None:
        commit = self.commit

        def hopeful(prepared: Any) -> int:
            try:
                now: int = commit(prepared)
            except CommitOutcomeUnknown:
                self.store.reconnect()
                now = self.clock.now()
            return now

        with patch.object(self, "commit", hopeful):
            original(self)

    return changed


@_bug(service.Coordinator, "guarded_turn")
def partitions_kept_after_an_outage(original: Any) -> Any:
    def changed(self: Any) -> None:
        with patch.object(self.ownership, "retake", lambda partitions, slowly=False, fenced=False: None):
            original(self)

    return changed


@_bug(service.Coordinator, "forget")
def coroutine_kept_after_a_rollback(original: Any) -> Any:
    return lambda self, prepared: self.committer.cancel(prepared)


@_bug(dispatch.Dispatcher, "confirmed")
def last_callback_confirms_all(original: Any) -> Any:
    def changed(self: Any, partition: int, *discharged: Any) -> int:
        rows = self._rows[partition]
        if rows and rows[-1].done:
            for row in rows:
                row.acknowledged, row.sync = True, set()
        confirmed: int = original(self, partition, *discharged)
        return confirmed

    return changed


@_bug(dispatch.Dispatcher, "confirmed")
def outbox_row_dropped_when_sent(original: Any) -> Any:
    def changed(self: Any, partition: int, *discharged: Any) -> int:
        rows = self._rows[partition]
        confirmed: int = rows[-1].seq if rows else original(self, partition, *discharged)
        return confirmed

    return changed


@_bug(dispatch.Dispatcher, "crowding")
def bytes_that_were_confirmed_still_count(original: Any) -> Any:
    def changed(self: Any) -> float:
        crowd, rows = original(self), self.unconfirmed() / self._config.unconfirmed_limit
        if crowd > rows:
            self.most = max(getattr(self, "most", 0.0), crowd)
        return max(rows, getattr(self, "most", 0.0))

    return changed


@_bug(writing, "_plain")
def result_left_out_in_avro(original: Any) -> Any:
    return lambda struct: {name: field for name, field in original(struct).items() if name != "result"}


@_bug(dispatch.Dispatcher, "failures")
def failed_delivery_counts_as_done(original: Any) -> Any:
    return lambda self, owned: []


@_bug(commit, "row_for")
def outcome_of_a_child_sent_to_the_wrong_home(original: Any) -> Any:
    def changed(run_id: str, action: Any, partitions: int, context: Any) -> Any:
        other, row = original(run_id, action, partitions, context)
        if isinstance(action, TellParent):
            row = msgspec.structs.replace(row, partition=(row.partition + 1) % partitions)
        return other, row

    return changed


# -- take-over ----------------------------------------------------------------------------


@_bug(takeover.TakeOver, "begin")
def redrive_forgotten(original: Any) -> Any:
    def changed(self: Any, owned: Any, found: Any, recreated: Any) -> None:
        original(self, owned, msgspec.structs.replace(found, outbox=[]), recreated)

    return changed


@_bug(takeover.TakeOver, "_pick_up")
def open_attempts_forgotten_at_take_over(original: Any) -> Any:
    return lambda self, partition, rows, now: None


@_bug(CaughtUp, "since")
def timers_overtake_the_log(original: Any) -> Any:
    return lambda *_: True


@_bug(Timers, "open")
def timers_lost_at_take_over(original: Any) -> Any:
    def changed(self: Any, partition: int, now: int) -> None:
        self._scanned_until[partition] = now + self._horizon_ms

    return changed


@_bug(ownership, "_owned")
def offsets_kept_when_a_topic_is_another_one(original: Any) -> Any:
    def changed(found: Any, ids: Any, inbound: Any) -> Any:
        owned, _ = original(found, ids, inbound)
        owned.offsets = list(found.offsets)
        return owned, []

    return changed


# -- fences -------------------------------------------------------------------------------


@_bug(Database, "_held")
def zombie_not_fenced(original: Any) -> Any:
    def changed(self: Any, advance: Any) -> bool:
        row = self.partitions.get(advance.partition)
        return row is not None and row.offsets == tuple(advance.previous)

    return changed


@_bug(attempt, "_current")
def execution_left_out_of_the_fence(original: Any) -> Any:
    return lambda draft, execution, node_id, generation: original(draft, draft.header.execution, node_id, generation)


@_bug(attempt, "_current")
def generation_left_out_of_the_fence(original: Any) -> Any:
    def changed(draft: Any, execution: int, node_id: str, generation: int) -> Any:
        node = draft.state.nodes.get(node_id)
        return original(draft, execution, node_id, node.generation if node is not None else generation)

    return changed


# -- input --------------------------------------------------------------------------------


@_bug(Database, "_write_inbox")
def inbox_row_not_consumed(original: Any) -> Any:
    return lambda self, batch: original(self, msgspec.structs.replace(batch, consumed=[]))


@_bug(Ticker, "_remember")
def ids_of_messages_not_remembered(original: Any) -> Any:
    return lambda self, ticked, entry, event: None


@_bug(intake.Intake, "send_home")
def stray_record_dropped(original: Any) -> Any:
    return lambda self, *rest, **more: None


@_bug(conflict.Conflict, "_without_losers")
def losers_of_a_conflict_dropped(original: Any) -> Any:
    return lambda self, work: [entry for entry in self._entries if entry.run_id not in self._lost]


@_bug(work.Ticked, "contended")
def lost_version_checks_not_told(original: Any) -> Any:
    return lambda self, now: []


@_bug(conflict.Conflict, "attempt")
def checks_lost_in_place_not_told(original: Any) -> Any:
    def changed(self: Any) -> Any:
        work, entries = original(self)
        work.lost = {}
        return work, entries

    return changed


@_bug(conflict.Conflict, "_requeue")
def lost_rounds_not_counted(original: Any) -> Any:
    return lambda self, work, entry, not_before, tries: original(self, work, entry, not_before, entry.tries)


@_bug(conflict.Conflict, "_wait")
def whoever_waits_behind_counts_as_a_loser(original: Any) -> Any:
    return lambda self, work, entry: original(self, work, msgspec.structs.replace(entry, tries=entry.tries + 1))


@_bug(intake.Intake, "_decoded")
def whatever_was_in_the_inbox_counts_as_a_loser(original: Any) -> Any:
    def changed(self: Any, row: Any) -> Any:
        entry = original(self, row)
        if entry is not None:
            entry.tries = row.tries + 1
        return entry

    return changed


# -- workers ------------------------------------------------------------------------------


@_bug(ledger.Ledger, "take")
def task_done_when_taken(original: Any) -> Any:
    def changed(self: Any, partition: int, offset: int) -> Any:
        place = original(self, partition, offset)
        place.window.finish(offset)
        return place

    return changed


@_bug(deliveries.TopicDelivery, "passes")
def attempt_committed_past_before_anybody_has_heard_of_it(original: Any) -> Any:
    return property(lambda self: self.runs)


@_bug(outlet.Outlet, "_heard")
def result_given_up_when_it_was_not_taken(original: Any) -> Any:
    return lambda self, record, settled, failed: original(self, record, settled, None)


# -- faults that the simulation itself found ------------------------------------------------


@_bug(RunCache, "keep")
def cache_lets_go_in_the_middle_of_a_batch(original: Any) -> Any:
    def changed(self: Any, run_id: str, cached: Any) -> None:
        original(self, run_id, cached)
        self.trim()

    return changed


@_bug(takeover.TakeOver, "_scan_for")
def topic_ids_asked_again_after_the_comparison(original: Any) -> Any:
    return lambda self, owned, changed, ids: original(self, owned, changed, self._log.topic_ids())


@_bug(service.Coordinator, "releasing")
def failures_of_all_partitions_taken_at_a_release(original: Any) -> Any:
    def changed(self: Any, partitions: Any) -> None:
        take = self.undelivered.take
        with patch.object(self.undelivered, "take", lambda work, going, d: take(work, self.ownership.owned, d)):
            original(self, partitions)

    return changed


@_bug(suspects.Suspects, "survived")
def deaths_forgiven_only_while_somebody_is_noted(original: Any) -> Any:
    def changed(self: Any, run_ids: Any, owned: Any) -> None:
        if self._noted:
            original(self, run_ids, owned)

    return changed


@_bug(conflict.Conflicts, "begin")
def rows_of_losers_named_by_the_clock_alone(original: Any) -> Any:
    def changed(self: Any, work: Any, timers: Any) -> Any:
        self.rows = itertools.repeat(0)
        return original(self, work, timers)

    return changed


@_bug(tick, "fork_for")
def reset_to_a_node_that_the_last_event_made_and_dropped(original: Any) -> Any:
    def changed(command: Any, header: Any, history: Any) -> Any:
        if command.kind != "reset":
            return original(command, header, history)
        with patch.object(fork, "_closes", lambda record: False):
            return original(command, header, history)

    return changed


@_bug(lifecycle_feed, "_note")
def event_that_comes_again_hides_the_end(original: Any) -> Any:
    return lambda followed, event: original(followed, msgspec.structs.replace(event, seq=1 << 40))


@_bug(watchdog.Watchdog, "take")
def watchdog_asleep(original: Any) -> Any:
    return lambda self, work, owned, limit: None
