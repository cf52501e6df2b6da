"""Compaction: of executions that are over, a run keeps its latest transitions in full and a summary of the rest (R10).

What a run is rebuilt from is never touched: the records of its current execution, and of those that a retry or reset
took it from. It is background work, a page at a time and fenced like a commit; a page that does not land is tried
again when the run continues as new the next time.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable, Mapping

from ductor_stream.coordinator.config import CoordinatorConfig
from ductor_stream.coordinator.ownership import Owned
from ductor_stream.engine.state import decode_records
from ductor_stream.ports import Clock, Foldable, Folded, RunStore, RunWrite
from ductor_stream.telemetry.logs import get_logger
from ductor_stream.telemetry.metrics import Metrics

_log = get_logger(__name__)

_PAGE = 500
"""Transitions folded at a time: some 5 ms of this thread."""

_PAGE_BYTES = 2_000_000
"""Of their records: reading so many takes no longer."""

_ATTEMPTS = 2_000
"""Rows of attempts deleted at a time: some 10 ms of Postgres. A fan-out may have left 200,000 of them."""

_PAUSE_S = 0.2
"""While there is other work to do, a page at most so often."""

_REMEMBERED = 10_000
"""Runs of which it is remembered how far they are folded; of others Postgres is asked once."""


class Compaction:
    """Knows which runs have history to fold, and folds it when there is time."""

    def __init__(self, config: CoordinatorConfig, ports: tuple[RunStore, Clock], metrics: Metrics) -> None:
        self._kept, self._metrics = config.history_kept, metrics
        self._page = min(_PAGE, max(1, config.history_kept))
        self._store, self._clock = ports
        self._wanted: OrderedDict[str, tuple[int, int]] = OrderedDict()
        self._folded: OrderedDict[str, int] = OrderedDict()
        self._next_at = 0.0

    def note(self, runs: Iterable[RunWrite]) -> None:
        """These have been committed: some may have begun another execution, and left history behind."""
        for run in runs:
            below = run.journal_from - self._kept
            if below <= 0 or run.journal_from != run.expected + 1:
                continue
            if below - self._folded.get(run.run_id, 0) > self._page:
                self._wanted[run.run_id] = (run.partition, below)

    def work(self, owned: Mapping[int, Owned], *, idle: bool) -> None:
        """Fold a page, if there is one and time for it. Raises StoreUnavailable."""
        if not self._wanted:
            return
        now = self._clock.monotonic()
        if not idle and now < self._next_at:
            return
        self._next_at = now + _PAUSE_S
        run_id, (partition, below) = self._wanted.popitem(last=False)
        mine = owned.get(partition)
        if mine is None:
            return
        if self._fold(mine, run_id, below):
            self._wanted.setdefault(run_id, (partition, below))

    def _fold(self, mine: Owned, run_id: str, below: int) -> bool:
        """Whether there may be more to fold of this run."""
        found = self._store.foldable(run_id, below, self._page, _PAGE_BYTES)
        if not found.transitions:
            self._remember(run_id, found.folded.upto)
            return False
        try:
            after = summed(found)
        except Exception as error:  # noqa: BLE001 - a newer release's, or damaged: it must not stop the loop (R11)
            _log.warning("history stays as it is", run_id=run_id, problem=f"{type(error).__name__}: {error}")
            return False
        fence = (mine.partition, mine.token, mine.epoch)
        crossed = after.execution > max(found.folded.execution, 1)
        if crossed and self._store.drop_attempts(fence, run_id, after.execution, _ATTEMPTS) == _ATTEMPTS:
            return True  # the rest of them first
        if not self._store.fold(fence, run_id, found.folded.upto, after):
            return False
        self._metrics.transitions_folded.inc(len(found.transitions))
        self._remember(run_id, after.upto)
        return True

    def _remember(self, run_id: str, upto: int) -> None:
        self._folded[run_id] = upto
        self._folded.move_to_end(run_id)
        if len(self._folded) > _REMEMBERED:
            self._folded.popitem(last=False)


def summed(found: Foldable) -> Folded:
    """The summary with these transitions in it. Raises UnknownFormat, and DecodeError for what is damaged."""
    counts = Counter(found.folded.counts)
    for _, _, _, raw in found.transitions:
        counts.update(str(type(record.event).__struct_config__.tag) for record in decode_records(raw))
    first, last = found.transitions[0], found.transitions[-1]
    began_at = found.folded.first_at if found.folded.upto else first[2]
    return Folded(last[0], last[1], began_at, last[2], dict(counts))
