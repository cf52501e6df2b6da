"""What has come due: timers and time-outs of the owned runs. Both wait for the log (protocol 21)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from ductor_stream.coordinator.cache import Cached, RunCache
from ductor_stream.coordinator.caught_up import CaughtUp
from ductor_stream.coordinator.config import CoordinatorConfig
from ductor_stream.coordinator.heartbeats import CHECK_AGAIN_MS, Heartbeats
from ductor_stream.coordinator.ownership import Owned
from ductor_stream.coordinator.timers import Timers
from ductor_stream.coordinator.work import Entry, Work
from ductor_stream.engine.events import AttemptFinished, AttemptTimedOut, TimerFired
from ductor_stream.engine.ids import Fence
from ductor_stream.engine.state import Node, RunState
from ductor_stream.engine.tick import due_events, wake_at
from ductor_stream.ports import Clock, EventLog
from ductor_stream.protocol.inbound import Beat
from ductor_stream.telemetry.metrics import Metrics


class Deadlines:
    """Adds to a turn what is due by the clock."""

    def __init__(
        self,
        config: CoordinatorConfig,
        ports: tuple[EventLog, Clock],
        memory: tuple[RunCache, Timers, Heartbeats],
        metrics: Metrics,
    ) -> None:
        self._config, self._clock = config, ports[1]
        self._cache, self._timers, self._heartbeats = memory
        self._caught_up = CaughtUp(*ports)
        self._metrics = metrics
        self._behind: dict[int, tuple[int, float]] = {}
        """Partitions whose timers have not begun: when they were taken, and until when (monotonic) they wait at most."""

    def taken(self, partition: int, now: int) -> None:
        """A partition was taken at that moment. What became due while nobody had it waits for what had come before."""
        self._behind[partition] = (now, self._clock.monotonic() + self._config.overdue_wait_s)

    def forget(self, partitions: Iterable[int]) -> None:
        """These partitions are no longer ours."""
        for partition in partitions:
            self._behind.pop(partition, None)
        self._caught_up.forget(partitions)

    def next_in(self) -> int | None:
        """In how many ms something comes due."""
        if self._behind:
            return CHECK_AGAIN_MS
        at, beats = self._timers.next_at(), self._heartbeats.next_in()
        timers = None if at is None else at - self._clock.now()
        return min((left for left in (timers, beats) if left is not None), default=None)

    def take(self, work: Work, owned: Mapping[int, Owned], limit: int) -> None:
        """Add due timers and time-outs."""
        now = self._clock.now()
        self._caught_up.begin()
        self._begin_timers(owned, now)
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
            heard.noticed = now if heard.noticed is None else min(heard.noticed, now)
            caught_up = self._caught_up.since(heard.noticed, owned[row.partition], "attempt-results")
            if len(work.entries) >= limit or Fence(row.run_id, row.execution, row.node_id, row.generation) in alive:
                continue
            if not caught_up:
                continue
            event = AttemptTimedOut(row.execution, row.node_id, row.generation, code)
            work.entries.append(Entry(row.run_id, row.partition, event))

    def _begin_timers(self, owned: Mapping[int, Owned], now: int) -> None:
        for partition, (taken_at, until) in list(self._behind.items()):
            mine = owned[partition]
            heard = [self._caught_up.since(taken_at, mine, topic) for topic in ("run-events", "attempt-results")]
            if all(heard) or self._clock.monotonic() >= until:
                self._timers.open(partition, now)
                del self._behind[partition]

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
                if not self._caught_up.since(_due_at(state.nodes[event.node_id], event), owned, "attempt-results"):
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


def _due_at(node: Node, event: AttemptTimedOut) -> int:
    """When this very time-out was due: the node may have another that was earlier and did not pass."""
    assert node.options is not None
    if event.code == "timeout_schedule_to_close":
        return node.created_at + (node.options.schedule_to_close_ms or 0)
    return node.dispatched_at + (node.options.schedule_to_start_ms or 0)


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
