"""Step 6 of the loop: a version check was lost. Try again, then send the losers through the inbox, then fail them.

It takes a write past the fence to get here: SQL by hand, a restored backup, a fault of ours.
Once an offset is passed, its event is applied or durable elsewhere, never only in memory.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable

from ductor_stream.coordinator.config import CoordinatorConfig
from ductor_stream.coordinator.letters import DeadLetters
from ductor_stream.coordinator.locked import LockedRuns
from ductor_stream.coordinator.ticking import requeued
from ductor_stream.coordinator.timers import Timers
from ductor_stream.coordinator.work import Entry, Work
from ductor_stream.engine.events import Condemned
from ductor_stream.errors import DataError, InvariantViolation, PoisonedRun, RecordVersionConflict
from ductor_stream.ports import Clock, RunStore
from ductor_stream.protocol.inbound import Beat
from ductor_stream.telemetry.logs import get_logger
from ductor_stream.telemetry.metrics import Metrics

_log = get_logger(__name__)

_HARD_BOUND = 20
"""Tries of one batch in all, beside two for each of its runs, which may all be poisoned: with locks held none is lost."""


class Conflicts:
    """Makes one ``Conflict`` per batch."""

    def __init__(
        self,
        config: CoordinatorConfig,
        store: RunStore,
        clock: Clock,
        letters: DeadLetters,
        metrics: Metrics,
        jitter: Callable[[], float],
    ) -> None:
        self.config, self.store, self.clock = config, store, clock
        self.letters, self.metrics, self.jitter = letters, metrics, jitter
        self.locked = LockedRuns(store, clock, metrics)
        self.rows = itertools.count()
        """Tells rows apart that are written within one ms, or after the clock went back: equal ones would be one."""
        self.rounds: dict[str, int] = {}
        """Run id -> rounds that inputs of the owner's own have lost (timers, time-outs): no row carries their count."""

    def begin(self, work: Work, timers: Timers) -> Conflict:
        """A batch is about to be tried for the first time."""
        return Conflict(self, work, timers)

    def landed(self, run_ids: Iterable[str]) -> None:
        """These runs were committed: whatever they had lost before is over."""
        if self.rounds:
            for run_id in run_ids:
                self.rounds.pop(run_id, None)


class Conflict:
    """The tries of one batch."""

    def __init__(self, rules: Conflicts, work: Work, timers: Timers) -> None:
        self._rules, self._work, self._timers = rules, work, timers
        self._entries = list(work.entries)
        self._letters: list[tuple[Entry, DataError]] = []
        self._losers: set[str] = set()
        self._locked = set(rules.locked.among(work.entries))
        self._attempts = self._tries = 0
        self._poisoned: set[str] = set()
        self._livelocked: set[str] = set()
        self._counted: set[str] = set()
        self.put_off: list[Entry] = []
        """Losers' inputs that came from nowhere outside: to be taken in again by a later turn."""
        self.waiting: list[Entry] = []
        """Likewise, of runs whose rows are locked: when these may be free."""
        self._bound = _HARD_BOUND + 2 * len({entry.run_id for entry in work.entries})

    def attempt(self) -> tuple[Work, list[Entry]]:
        """What to try now: a fresh copy of the work, and its entries."""
        work = self._work.copy()
        for entry, error in self._letters:
            if entry.received is not None:
                self._rules.letters.add(work, entry.partition, entry.received, error)
            work.orphan(entry, error)
        if self._tries <= self._rules.config.conflict_tries and not self._locked:
            return work, self._entries
        return work, self._without_losers(work)

    def lost(self, conflict: RecordVersionConflict) -> None:
        """These runs lost their version check. Waits a little before the next try."""
        config = self._rules.config
        self._count()
        if conflict.locked:
            # The neighbours have waited long enough for these rows: they go on without them, now and later.
            self._locked |= conflict.run_ids
            self._rules.locked.found(self._entries, conflict.run_ids)
            return
        self._tries += 1
        self._losers |= conflict.run_ids
        _log.warning(str(conflict), run_ids=sorted(conflict.run_ids)[:5], tries=self._tries)
        if self._tries <= config.conflict_tries:
            wait_ms = config.conflict_backoff_ms * 2 ** (self._tries - 1) * (1 + self._rules.jitter())
            self._rules.clock.sleep(wait_ms / 1000)

    def poisoned(self, error: PoisonedRun) -> None:
        """One run's data made the statement fail for all: its inputs are set aside, the others go on (protocol 23)."""
        self._count()
        again = error.run_id in self._poisoned
        self._poisoned.add(error.run_id)
        mine = [e for e in self._entries if e.run_id == error.run_id]
        self._entries = [e for e in self._entries if e.run_id != error.run_id]
        self._letters.extend((e, error) for e in mine)
        if mine and not again:
            event = Condemned("poisoned", f"its data cannot be stored: {error}")
            self._entries.append(Entry(error.run_id, mine[0].partition, event))

    def _count(self) -> None:
        """Of all attempts, why ever they failed; ``_tries`` are those that lost a version check."""
        self._attempts += 1
        if self._attempts > self._bound:
            raise InvariantViolation(f"a batch was tried {self._attempts} times: {sorted(self._losers)[:3]}")

    def _without_losers(self, work: Work) -> list[Entry]:
        """Winners go on; losers' inputs go through the inbox, in the same transaction, with the count carried along."""
        rules = self._rules
        losers = self._losers if self._tries > rules.config.conflict_tries else set()
        condemned = self._condemned(losers - self._locked)
        self.put_off, self.waiting = [], []
        entries: list[Entry] = []
        for entry in self._entries:
            if entry.run_id in self._locked and not isinstance(entry.input, Beat):  # a beat does not touch its run
                self._wait(work, entry)
            elif entry.run_id not in losers:
                entries.append(entry)
            elif entry.run_id in condemned:
                message = f"its record_version moved under its owner {self._rounds(entry)} times"
                entries.append(Entry(entry.run_id, entry.partition, Condemned("conflict_livelock", message)))
                entries.append(entry)
            elif entry.durable:
                self._requeue(work, entry, None, entry.tries + 1)
            else:
                self._later(entry)
        return entries

    def _requeue(self, work: Work, entry: Entry, not_before: int | None, tries: int) -> None:
        # Never the name of the row that it comes from, which this very commit deletes: it would not be written.
        about = f"conflict/{self._rules.clock.now()}/{entry.run_id}/{entry.tries}/{next(self._rules.rows)}"
        work.inbox.append(requeued(entry, about, not_before, tries))

    def _wait(self, work: Work, entry: Entry) -> None:
        """Until the row may be free: all that comes for the run meanwhile waits for the same moment, in its order.

        No version check was lost by it, and none is counted.
        """
        until = self._rules.locked.until(entry.run_id)
        if entry.durable:
            self._requeue(work, entry, until, entry.tries)
        elif entry.due_at is not None and until is not None:
            self._timers.set(entry.partition, entry.run_id, until)
        else:
            self.waiting.append(entry)

    def _later(self, entry: Entry) -> None:
        """An input of the owner's own is made again: no row need carry it, so its rounds are counted here."""
        rules = self._rules
        if entry.run_id not in self._counted:
            self._counted.add(entry.run_id)
            rules.rounds[entry.run_id] = rules.rounds.get(entry.run_id, 0) + 1
        if entry.due_at is not None:
            self._timers.set(entry.partition, entry.run_id, rules.clock.now() + rules.config.conflict_backoff_ms)
        else:
            self.put_off.append(entry)

    def _rounds(self, entry: Entry) -> int:
        return max(entry.tries, self._rules.rounds.get(entry.run_id, 0))

    def _condemned(self, losers: set[str]) -> set[str]:
        """Runs past the bound, now locked, so that failing them cannot lose once more (protocol 18)."""
        bound = self._rules.config.conflict_bound
        found = {e.run_id for e in self._entries if e.run_id in losers and self._rounds(e) >= bound}
        if not found:
            return found
        try:
            self._rules.store.lock(sorted(found))
        except RecordVersionConflict as error:
            _log.warning("rows past the bound stay locked by others", error=str(error))
            return set()
        self._rules.metrics.livelocks.inc(len(found - self._livelocked))
        self._livelocked |= found
        return found
