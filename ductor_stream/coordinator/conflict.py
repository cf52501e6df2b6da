"""Step 6 of the loop: a version check was lost. Try again, then send the losers through the inbox, then fail them.

It takes a write past the fence to get here: SQL by hand, a restored backup, a fault of ours.
Once an offset is passed, its event is applied or durable elsewhere, never only in memory.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

from ductor_stream.coordinator.config import CoordinatorConfig
from ductor_stream.coordinator.letters import DeadLetters
from ductor_stream.coordinator.timers import Timers
from ductor_stream.coordinator.waits import Waits
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
        self.waits = Waits(store, clock, metrics)
        self.rows = itertools.count()
        """Tells rows apart that are written within one ms, or after the clock went back: equal ones would be one."""

    def begin(self, work: Work, timers: Timers) -> Conflict:
        """A batch is about to be tried for the first time."""
        return Conflict(self, work, timers)


class Conflict:
    """The tries of one batch."""

    def __init__(self, rules: Conflicts, work: Work, timers: Timers) -> None:
        self._rules, self._work, self._timers = rules, work, timers
        out, self._behind, over = rules.waits.among(work)
        self._entries = list(work.entries)
        if over:  # what waited comes before all that was made, or came, meanwhile
            self._entries.sort(key=lambda each: each.run_id in over and each.row is None)
        self._letters: list[tuple[Entry, DataError]] = []
        self._lost: dict[str, int] = {}
        self._out, self._waited = set(out), out | self._behind
        self._attempts = self._tries = 0
        self._poisoned: set[str] = set()
        self._livelocked: set[str] = set()
        self._bound = _HARD_BOUND + 2 * len({entry.run_id for entry in work.entries})

    def attempt(self) -> tuple[Work, list[Entry]]:
        """What to try now: a fresh copy of the work, and its entries."""
        work = self._work.copy()
        self._work.loaded = {}  # they have lost their version checks, perhaps
        work.lost = self._lost.copy()
        for entry, error in self._letters:
            if entry.received is not None:
                self._rules.letters.add(work, entry.partition, entry.received, error)
            work.orphan(entry, error)
        if self._tries <= self._rules.config.conflict_tries and not self._out and not self._behind:
            return work, self._entries
        return work, self._without_losers(work)

    def lost(self, conflict: RecordVersionConflict) -> None:
        """These runs lost their version check. Waits a little before the next try."""
        config = self._rules.config
        self._count()
        if conflict.locked:
            # The neighbours have waited long enough for these rows: they go on without them, now and later.
            self._out |= conflict.run_ids
            self._rules.waits.found(self._entries, conflict.run_ids)
            return
        self._tries += 1
        for run_id in conflict.run_ids:
            self._lost[run_id] = self._lost.get(run_id, 0) + 1
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
            raise InvariantViolation(f"a batch was tried {self._attempts} times: {sorted(self._lost)[:3]}")

    def _without_losers(self, work: Work) -> list[Entry]:
        """Winners go on; losers' inputs go through the inbox, in the same transaction, with the count carried along."""
        rules = self._rules
        losers = set(self._lost) if self._tries > rules.config.conflict_tries else set()
        condemned, again = self._condemned(losers - self._out), self._next_round(losers)
        entries: list[Entry] = []
        for entry in self._entries:
            if self._has_to_wait(entry):
                self._wait(work, entry)
            elif entry.run_id not in losers:
                entries.append(entry)
            elif entry.run_id in condemned:
                message = f"its record_version moved under its owner in {condemned[entry.run_id]} rounds"
                entries.append(Entry(entry.run_id, entry.partition, Condemned("conflict_livelock", message)))
                entries.append(entry)
            else:
                self._requeue(work, entry, again[entry.run_id], entry.tries + 1)
        return entries

    def _next_round(self, losers: set[str]) -> dict[str, int | None]:
        """When all inputs of a loser come again: after the first round at once (None), then ever later."""
        rounds = dict.fromkeys(losers, 0)
        for entry in self._entries:
            if entry.run_id in losers:
                rounds[entry.run_id] = max(rounds[entry.run_id], entry.tries)
        now, delay_ms = self._rules.clock.now(), self._rules.config.conflict_delay_ms
        return {run_id: now + (delay_ms << (most - 1)) if most else None for run_id, most in rounds.items()}

    def _has_to_wait(self, entry: Entry) -> bool:
        if isinstance(entry.input, Beat):
            return False  # it does not touch its run
        behind = entry.run_id in self._behind and entry.row is None and not isinstance(entry.input, Condemned)
        return behind or entry.run_id in self._out

    def _requeue(self, work: Work, entry: Entry, not_before: int | None, tries: int) -> None:
        # What came in no row gets one, under a name of its own each time: rows of one name are one.
        about = f"conflict/{self._rules.clock.now()}/{entry.run_id}/{entry.tries}/{next(self._rules.rows)}"
        work.put_off(entry, about, not_before, tries)

    def _wait(self, work: Work, entry: Entry) -> None:
        """Behind all that waits for the run already, and until the same moment: when its row may be free, if it is locked.

        No version check was lost by it, and none is counted.
        """
        until = self._rules.waits.until(entry.run_id)
        if entry.due_at is not None and entry.run_id in self._waited and until is not None:
            self._timers.set(entry.partition, entry.run_id, until)  # it is made again then, if it is still due
        else:
            self._requeue(work, entry, until, entry.tries)

    def _condemned(self, losers: set[str]) -> dict[str, int]:
        """Runs past the bound, with their rounds: now locked, so that failing them cannot lose once more (protocol 18)."""
        bound = self._rules.config.conflict_bound
        found: dict[str, int] = {}
        for entry in self._entries:
            if entry.run_id in losers and entry.tries >= bound:
                found[entry.run_id] = max(entry.tries, found.get(entry.run_id, 0))
        if not found:
            return found
        try:
            self._rules.store.lock(sorted(found))
        except RecordVersionConflict as error:
            _log.warning("rows past the bound stay locked by others", error=str(error))
            return {}
        self._rules.metrics.livelocks.inc(len(found.keys() - self._livelocked))
        self._livelocked |= found.keys()
        return found
