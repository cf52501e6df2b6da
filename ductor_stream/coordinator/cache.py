"""Runs in the owner's memory: state and live coroutine, each bound to the record_version it was committed under."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from ductor_stream.engine.events import Continuation
from ductor_stream.engine.fork import lineage
from ductor_stream.engine.planners import Live
from ductor_stream.engine.state import CLOSED, Record, RunState, UnknownFormat, decode_header, decode_records
from ductor_stream.engine.tick import rebuild
from ductor_stream.ports import BufferedMessage, LoadedRun, RunStore
from ductor_stream.telemetry.metrics import Metrics


class Cached(msgspec.Struct):
    """What the owner knows of a run between two commits.

    ``state`` is None for a run that does not exist; ``record_version`` is then 0. ``history`` is there only
    when the run was just loaded, or has just continued as new. ``size`` is that of the records (bytes) it is rebuilt from. ``problem`` says why the run cannot be ticked by this release.
    """

    record_version: int
    state: RunState | None
    live: Live | None = None
    partition: int = -1
    history: Sequence[Record] = ()
    journal_from: int = 1
    wake_at: int | None = None
    size: int = 0
    buffered: Sequence[BufferedMessage] = ()
    problem: str = ""


_AT_ONCE = 500
"""Runs read by one query: each takes a few KB, however short its history is."""

_NOTHING: Mapping[str, Cached] = {}


class RunCache:
    """Least recently used runs go first. An entry is only put here after the commit that it is bound to."""

    def __init__(self, store: RunStore, limit: int, load_bytes: int, metrics: Metrics) -> None:
        self._store = store
        self._limit = limit
        self._load_bytes = load_bytes
        self._metrics = metrics
        self._runs: OrderedDict[str, Cached] = OrderedDict()

    def load(
        self,
        run_ids: Iterable[str],
        whole: frozenset[str] = frozenset(),
        loaded: Mapping[str, Cached] = _NOTHING,
    ) -> Iterator[dict[str, Cached]]:
        """The runs asked for, in portions: those in memory with the first of those that are read from Postgres.

        All of them together may be more than there is memory for: a portion is to be let go of before the next is asked
        for. Runs in ``whole`` come with their history, also when they are closed. ``loaded`` are some that were read
        just now. Raises StoreUnavailable.
        """
        self.drop(whole)
        found: dict[str, Cached] = {}
        missing: list[str] = []
        for run_id in run_ids:
            cached = self._runs.get(run_id)
            if cached is not None:
                self._runs.move_to_end(run_id)
                found[run_id] = cached
            elif run_id not in whole and (read := loaded.get(run_id)) is not None and read.live is None:
                found[run_id] = read
            else:
                missing.append(run_id)
        if not missing:
            yield found
        for first in range(0, len(missing), _AT_ONCE):
            asked = missing[first : first + _AT_ONCE]
            while asked:
                for run_id, run in self._store.load(asked, whole, self._load_bytes).items():
                    found[run_id] = cached_from(run)
                    self._metrics.runs_loaded.inc()
                asked = [run_id for run_id in asked if run_id not in found]
                yield found
                found = {}

    def peek(self, run_id: str) -> Cached | None:
        """The run, if it is in memory."""
        return self._runs.get(run_id)

    def keep(self, run_id: str, cached: Cached) -> None:
        """Remember a run as it was committed; without a live coroutine it is cheaper to load it again.

        But for an execution that has just begun: it will be ticked at once, and its history is there.
        """
        if cached.live is None and not cached.history:
            self._runs.pop(run_id, None)
            return
        self._runs[run_id] = cached
        self._runs.move_to_end(run_id)

    def trim(self) -> None:
        """Let the oldest go. Only when all of a batch is kept: the coroutine of a run that is about to be kept again
        is that of its older entry, and would go with it."""
        while len(self._runs) > self._limit:
            _, oldest = self._runs.popitem(last=False)
            abandon([oldest.live])
        self._metrics.runs_cached.set(len(self._runs))

    def drop(self, run_ids: Iterable[str]) -> None:
        """Forget runs: their partition was given away, or their commit did not land (protocol 17)."""
        for run_id in run_ids:
            cached = self._runs.pop(run_id, None)
            if cached is not None:
                abandon([cached.live])
        self._metrics.runs_cached.set(len(self._runs))

    def in_flight(self) -> int:
        """How many attempts of runs in memory are dispatched and not yet finished."""
        states = (cached.state for cached in self._runs.values())
        nodes = (node for state in states if state is not None for node in state.nodes.values())
        return sum(node.kind == "step" and node.status == "dispatched" for node in nodes)

    def close(self, partitions: Iterable[int]) -> None:
        """Forget all runs of partitions that are no longer ours, or are taken anew."""
        gone = frozenset(partitions)
        self.drop([run_id for run_id, cached in self._runs.items() if cached.partition in gone])


def cached_from(loaded: LoadedRun) -> Cached:
    """Decode a loaded run and rebuild its state from its records."""
    if loaded.header is None:
        return Cached(loaded.record_version, None, buffered=loaded.buffered)
    try:
        return _rebuilt(loaded, loaded.header)
    except UnknownFormat as error:
        return Cached(loaded.record_version, None, problem=str(error))
    except Exception as error:  # noqa: BLE001 - damaged by whatever: it must not take other runs along (R11)
        return Cached(loaded.record_version, None, problem=f"its state cannot be read: {type(error).__name__}: {error}")


def _rebuilt(loaded: LoadedRun, raw_header: bytes) -> Cached:
    header = decode_header(raw_header)
    records = [r for raw in loaded.records for r in decode_records(raw)]
    # A closed run is loaded without its records: nothing of it is open any more.
    history = lineage(records, header.execution)
    state = RunState(header) if header.status in CLOSED or not history else rebuild(loaded.run_id, history)
    if history:
        header.seq, header.now = state.header.seq, state.header.now
    state.header = header
    size = sum(map(len, loaded.records))
    return Cached(loaded.record_version, state, history=history, journal_from=loaded.journal_from, size=size)


def just_begun(records: Sequence[Record], state: RunState) -> Sequence[Record]:
    """The whole history of an open execution, where these records of one tick are all that it has; else nothing."""
    own = [record for record in records if record.execution == state.header.execution]
    if state.closed or not own or own[0].seq != 1 or not isinstance(own[0].event, Continuation):
        return ()
    return own


def abandon(lives: Iterable[Live | None]) -> None:
    """Drop coroutines that nobody will feed again. Left to the garbage collector, their ``finally:`` blocks would run."""
    for live in lives:
        if live is not None:
            live.abandon()
