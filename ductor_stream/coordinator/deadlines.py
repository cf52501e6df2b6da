"""What has come due: timers and time-outs of the owned runs. Time-outs of attempts wait for the log (protocol 21)."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from ductor_stream.coordinator.cache import Cached, RunCache
from ductor_stream.coordinator.heartbeats import CHECK_AGAIN_MS, Heartbeats
from ductor_stream.coordinator.ownership import Owned
from ductor_stream.coordinator.timers import Timers
from ductor_stream.coordinator.work import Entry, Work
from ductor_stream.engine.events import AttemptFinished, AttemptTimedOut, TimerFired
from ductor_stream.engine.ids import Fence
from ductor_stream.engine.state import RunState
from ductor_stream.engine.tick import due_events, wake_at
from ductor_stream.errors import LogUnavailable
from ductor_stream.ports import INBOUND, Clock, EventLog
from ductor_stream.protocol.inbound import Beat
from ductor_stream.telemetry.metrics import Metrics

RESULTS = INBOUND.index("attempt-results")


class Deadlines:
    """Adds to a turn what is due by the clock."""

    def __init__(
        self,
        ports: tuple[EventLog, Clock],
        memory: tuple[RunCache, Timers, Heartbeats],
        metrics: Metrics,
    ) -> None:
        self._log, self._clock = ports
        self._cache, self._timers, self._heartbeats = memory
        self._metrics = metrics
        self._ends: dict[int, int | None] = {}
        """Where results end by partition, asked at most once a turn: each question may take seconds when Kafka is away."""

    def next_in(self) -> int | None:
        """In how many ms something comes due."""
        at, beats = self._timers.next_at(), self._heartbeats.next_in()
        timers = None if at is None else at - self._clock.now()
        return min((left for left in (timers, beats) if left is not None), default=None)

    def take(self, work: Work, owned: Mapping[int, Owned], limit: int) -> None:
        """Add due timers and time-outs."""
        now = self._clock.now()
        self._ends.clear()
        self._timers.refresh(now)
        due = self._timers.due(now, limit)
        if due:
            work.loaded = next(self._cache.load(run_id for _, _, run_id in due))
            # A run with thousands of timers due at once takes turns with all others (R11).
            share = max(1, limit // len(due))
            for at, partition, run_id in due:
                cached = work.loaded.get(run_id)
                if cached is None:
                    self._timers.set(partition, run_id, at)  # of the next portion: it stays due
                elif cached.state is not None and partition in owned:
                    self._take_run(work, owned[partition], cached, (at, now, share))
        alive = {_about(entry) for entry in work.entries if isinstance(entry.input, Beat | AttemptFinished)}
        for heard, code in self._heartbeats.due():
            row = heard.open
            if row.partition not in owned:
                continue
            # Kept until the commit that closes it has landed: were it lost, nobody would give the attempt up.
            self._heartbeats.again(heard)
            if heard.watermark is None:
                heard.watermark = self._end_of_results(row.partition)
            if len(work.entries) >= limit or Fence(row.run_id, row.execution, row.node_id, row.generation) in alive:
                continue
            if not self._read_up_to(owned[row.partition], heard.watermark):
                continue
            event = AttemptTimedOut(row.execution, row.node_id, row.generation, code)
            work.entries.append(Entry(row.run_id, row.partition, event))

    def _take_run(self, work: Work, owned: Owned, cached: Cached, when: tuple[int, int, int]) -> None:
        at, now, share = when
        state = cached.state
        assert state is not None
        run_id = state.header.run_id
        found, started = 0, set[str]()
        for event in due_events(state, now):
            if found >= share:
                break  # its commit leaves it due: the rest is for the next turns
            if isinstance(event, AttemptTimedOut):
                if event.code == "timeout_schedule_to_start" and self._has_started(run_id, event):
                    started.add(event.node_id)
                    continue
                if not self._read_up_to(owned, self._end_of_results(owned.partition)):
                    continue
            work.entries.append(Entry(run_id, owned.partition, event, due_at=at))
            found += 1
            if isinstance(event, TimerFired):
                own = state.nodes[event.node_id].due_at
                self._metrics.timer_lateness_seconds.observe((now - (at if own is None else own)) / 1000)
        if not found:
            # What was kept may have been a lower bound only: from here on it is exact again.
            cached.wake_at = wake_at(state)
            next_at = wake_at(_without_starts(state, started))
            self._timers.set(owned.partition, run_id, None if next_at is None else max(next_at, now + CHECK_AGAIN_MS))

    def _has_started(self, run_id: str, event: AttemptTimedOut) -> bool:
        heard = self._heartbeats.find((run_id, event.execution, event.node_id))
        return heard is not None and heard.open.generation == event.generation

    def _end_of_results(self, partition: int) -> int | None:
        if partition not in self._ends:
            self._ends[partition] = None
            if self._log.healthy() and None not in (end for p, end in self._ends.items() if p != partition):
                try:
                    self._ends[partition] = self._log.end_offsets(partition)["attempt-results"]
                except LogUnavailable:
                    pass
        return self._ends[partition]

    def _read_up_to(self, owned: Owned, watermark: int | None) -> bool:
        """Whether results that came before the due time have been applied."""
        if watermark is None:
            return False
        return max(owned.offsets[RESULTS], self._log.reached_end(owned.partition, "attempt-results")) >= watermark


def _without_starts(state: RunState, started: set[str]) -> RunState:
    """The run as its timers see it: an attempt that has begun cannot be late to start any more."""
    if not started:
        return state
    seen = state.clone()
    for node_id in started:
        node = seen.nodes[node_id]
        assert node.options is not None
        options = msgspec.structs.replace(node.options, schedule_to_start_ms=None)
        seen.nodes[node_id] = msgspec.structs.replace(node, options=options)
    return seen


def _about(entry: Entry) -> Fence:
    """The attempt that a heartbeat or result is about."""
    assert isinstance(entry.input, Beat | AttemptFinished)
    return Fence(entry.run_id, entry.input.execution, entry.input.node_id, entry.input.generation)
