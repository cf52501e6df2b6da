"""The coordinator's loop: take a batch, tick its runs, COMMIT, then dispatch.

Read ``turn`` and ``advance`` first: they are the loop as docs/architecture.md describes it.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack

from ductor_stream.coordinator.cache import RunCache, abandon
from ductor_stream.coordinator.commit import Committer
from ductor_stream.coordinator.compaction import Compaction
from ductor_stream.coordinator.config import CoordinatorConfig
from ductor_stream.coordinator.conflict import Conflicts
from ductor_stream.coordinator.definitions import Definitions
from ductor_stream.coordinator.dispatch import Dispatcher
from ductor_stream.coordinator.expiry import Expiry
from ductor_stream.coordinator.gauges import Gauges
from ductor_stream.coordinator.heartbeats import Heartbeats
from ductor_stream.coordinator.intake import Intake
from ductor_stream.coordinator.letters import DeadLetters
from ductor_stream.coordinator.ownership import Owned, Ownership
from ductor_stream.coordinator.prepared import Prepared
from ductor_stream.coordinator.readiness import Readiness
from ductor_stream.coordinator.suspects import Suspects
from ductor_stream.coordinator.takeover import TakeOver
from ductor_stream.coordinator.telling import tell
from ductor_stream.coordinator.ticking import Ticker
from ductor_stream.coordinator.timers import Timers
from ductor_stream.coordinator.undelivered import Undelivered
from ductor_stream.coordinator.watchdog import Watchdog
from ductor_stream.coordinator.work import Entry, Ticked, Work
from ductor_stream.errors import (
    CommitOutcomeUnknown,
    InvalidConfig,
    LogUnavailable,
    OwnershipLost,
    PoisonedRun,
    RecordVersionConflict,
    StoreUnavailable,
    TransientError,
)
from ductor_stream.ports import INBOUND, Clock, EventLog, LocalWorkers, RunStore, Taken
from ductor_stream.protocol.inbound import InboundDecoder
from ductor_stream.protocol.outbound import Encoder
from ductor_stream.protocol.topics import Topics
from ductor_stream.protocol.worker import WorkerCodec
from ductor_stream.telemetry.logs import get_logger
from ductor_stream.telemetry.metrics import Metrics

_log = get_logger(__name__)

_FAULTS_IN_A_ROW = 10
"""Turns that fail one after the other, for a reason that is no outage, before the process ends and is restarted."""


class Coordinator:
    """One owner of run partitions. ``run`` blocks its thread until ``stop`` is called from any other."""

    def __init__(
        self,
        config: CoordinatorConfig,
        definitions: Definitions,
        topics: Topics,
        ports: tuple[RunStore, EventLog, Clock, LocalWorkers | None],
        codec: tuple[InboundDecoder, Encoder, WorkerCodec],
        metrics: Metrics,
        *,
        partitions: int,
        new_token: Callable[[], str],
        jitter: Callable[[], float],
    ) -> None:
        self.config, self.metrics = config, metrics
        self.store, self.log, self.clock, self.local = ports
        decoder, encoder, tasks = codec
        self.cache = RunCache(self.store, config.cached_runs, config.load_bytes, metrics)
        self.timers = Timers(self.store, config.horizon_ms)
        self.heartbeats = Heartbeats(self.clock)
        self.dispatcher = Dispatcher(config, self.log, self.clock, metrics, self.local)
        self.ownership = Ownership(ports[:3], topics.inbound_names, metrics, self, new_token)
        letters = DeadLetters(topics, encoder, metrics)
        memory = (self.cache, self.timers, self.heartbeats)
        self.intake = Intake(config, topics, ports, (decoder, encoder, letters), memory, metrics, partitions)
        self.suspects = Suspects(config, self.store)
        beats = (self.cache, self.heartbeats)
        clocked = (self.store, self.clock)
        self.ticker = Ticker(config, definitions, clocked, beats, (decoder, letters), metrics, self.suspects)
        self.undelivered = Undelivered(config, topics, (self.log, self.clock), (letters, tasks), metrics)
        outgoing = (self.dispatcher, self.heartbeats, self.undelivered)
        self.committer = Committer(config, topics, encoder, self.local, outgoing, metrics, partitions)
        self.conflicts = Conflicts(config, self.store, self.clock, letters, metrics, jitter)
        self.expiry = Expiry(config, clocked, letters)
        self.compaction = Compaction(config, clocked, metrics)
        speech = (encoder, tasks, letters)
        self.takeover = TakeOver(
            config, definitions, topics, ports, speech, beats, self.dispatcher, metrics, partitions
        )
        watching = (self.dispatcher, self.undelivered)
        self.watchdog = Watchdog(config, topics, ports[:3], beats, watching, metrics)
        self.gauges = Gauges(config, topics, (self.log, self.clock), self.cache, metrics, partitions)
        self.readiness = Readiness(self)
        self._stopping = threading.Event()
        self.committed_at = 0.0
        self._sampled_at = 0.0
        self._counts: Mapping[str, int] = {}
        self._resting: frozenset[int] = frozenset()
        self._faults = 0

    # -- the loop ---------------------------------------------------------------------------

    def run(self) -> None:
        """Own partitions until ``stop``; then drain. Raises TopicsNotReady, and what ten turns failed with if nothing landed between them."""
        self.log.subscribe(self.ownership)
        try:
            while not self._stopping.is_set():
                self.guarded_turn()
        finally:
            self._drain()

    def stop(self) -> None:
        """End ``run`` in good order: what is committed is dispatched, partitions are let go."""
        self._stopping.set()

    def guarded_turn(self) -> None:
        """One turn; whatever goes wrong in it, the partitions concerned are taken anew, and nothing is lost (R5)."""
        try:
            self.turn()
        except OwnershipLost as error:
            _log.warning("fenced", error=str(error))
            self.metrics.ownership_lost.inc()
            # All of them: who has lost one without being told has perhaps lost the others too.
            self.ownership.retake(list(self.ownership.owned), fenced=True)
        except (StoreUnavailable, CommitOutcomeUnknown) as error:
            _log.warning("postgres away", error=str(error))
            self.metrics.outages["postgres"].inc()
            self.ownership.store_down = True
            self.ownership.retake(list(self.ownership.owned))
            self.ownership.reconnect()
        except LogUnavailable as error:
            _log.warning("kafka away", error=str(error))
            self.metrics.outages["kafka"].inc()
            self.ownership.retake(list(self.ownership.owned), slowly=True)
        except TransientError as error:
            _log.warning("something else is away", error=str(error))
            self.ownership.retake(list(self.ownership.owned), slowly=True)
        except InvalidConfig:
            raise  # what no other turn mends: whoever runs this process has to
        except Exception:
            _log.exception("turn failed")
            self._faults += 1
            if self._faults >= _FAULTS_IN_A_ROW:
                raise
            self.ownership.retake(list(self.ownership.owned), slowly=True)

    def turn(self) -> None:
        """One pass of the loop: settle what is ours, take what has come, advance the runs."""
        self.readiness.turned()
        self._sample()
        self.ownership.settle()
        self.ownership.retake(self.takeover.watch(self.ownership.owned))
        self.gauges.look(self.ownership.owned, self.committed_at)
        self.intake.hint(self.conflicts.waits.come_due())
        self.intake.limit = self.suspects.limit
        work = self._rest() if self._crowded() else self.intake.take(self.ownership.owned, self.ownership.next_due())
        if stalled := self.intake.stalled():
            self.ownership.retake(stalled, slowly=True)
            self.intake.let_go(work, self.ownership.owned)
        self.undelivered.take(work, self.ownership.owned, self.dispatcher)
        self.takeover.take(work, self.ownership.owned, self.intake.limit)
        self.watchdog.take(work, self.ownership.owned, self.intake.limit)
        self.expiry.take(work, self.ownership.owned)
        self._touch_idle(work)
        idle = work.empty()
        if not idle:
            self.advance(work)
        self.compaction.work(self.ownership.owned, idle=idle)

    def advance(self, work: Work) -> None:
        """Tick, commit, dispatch. Lost version checks are tried again, then go through the inbox (architecture, 6)."""
        conflict = self.conflicts.begin(work, self.timers)
        while True:
            attempt, entries = conflict.attempt()
            prepared = Prepared()
            try:
                prepared = self.tick(attempt, entries)
                now = self.commit(prepared)
            except RecordVersionConflict as lost:
                self.metrics.conflicts.inc(len(lost.run_ids))
                self.forget(prepared)
                conflict.lost(lost)
            except PoisonedRun as poisoned:
                self.forget(prepared)
                conflict.poisoned(poisoned)
            except BaseException:
                self.forget(prepared)
                raise
            else:
                self.committed(attempt, prepared, now)
                self.dispatch(prepared)
                self.conflicts.waits.put_behind(attempt.waiting)
                # Last, since it writes: what has landed is dispatched, and used the slots that it had reserved.
                self.suspects.survived([run.run_id for run in prepared.batch.runs], self.ownership.owned)
                return

    def tick(self, work: Work, entries: Sequence[Entry]) -> Prepared:
        """Load the runs concerned, tick each over its inputs, and put together what is to be committed."""
        forking = frozenset(entry.run_id for entry in entries if entry.forks)
        self.suspects.note(entries, self.ownership.owned)
        self.readiness.ticking(True)
        ticked: list[Ticked] = []
        try:
            runs = self.cache.load(dict.fromkeys(entry.run_id for entry in entries), forking, work.loaded)
            self.ticker.tick_all(work, entries, runs, ticked)
            self.readiness.ticking(False)
            self.metrics.ticks.inc(len(ticked))
            return self.committer.prepare(work, ticked, self.ownership.owned, self._topic_counts(), self.clock.now())
        except BaseException:
            self.cache.drop([one.run_id for one in ticked])
            abandon(one.tick.live for one in ticked if one.tick is not None)
            raise

    def commit(self, prepared: Prepared) -> int:
        """The durability boundary: everything of the batch lands in Postgres, or nothing does (R3)."""
        began = self.clock.monotonic()
        now = self.store.commit(prepared.batch)
        self.metrics.commit_seconds.observe(self.clock.monotonic() - began)
        return now

    def committed(self, work: Work, prepared: Prepared, now: int) -> None:
        """Remember what has landed."""
        self.clock.observe(now)
        self.committed_at = self.clock.monotonic()
        self._faults = 0
        for run_id, cached in prepared.kept.items():
            self.cache.keep(run_id, cached)
            self.timers.set(cached.partition, run_id, cached.wake_at)
        for advance in prepared.batch.partitions:
            owned = self.ownership.owned[advance.partition]
            owned.committed, owned.offsets = advance.next, list(advance.next)
            owned.outbox_seq, owned.confirmed = advance.outbox_seq, advance.confirmed
            owned.ids_changed = owned.ids_changed and advance.topic_ids is None
            self.log.store_offsets(advance.partition, dict(zip(INBOUND, advance.next, strict=True)))
        self.ownership.settled(advance.partition for advance in prepared.batch.partitions)
        self.compaction.note(prepared.batch.runs)
        self.cache.trim()
        for key in prepared.ended:
            self.heartbeats.forget(key)
        for heard in prepared.heard:
            self.heartbeats.hear(heard.open, heard.options)
        self.dispatcher.discharge(prepared.discharged)
        self.intake.hint(row.partition for row in prepared.batch.inbox if row.not_before is None)
        tell(prepared, self.metrics)

    def dispatch(self, prepared: Prepared) -> None:
        """Send what is committed, and only that (R4). Acknowledgements come in later turns."""
        for advance in prepared.batch.partitions:
            if advance.outbox is not None:
                partition = advance.partition
                sync = prepared.sync.get(partition)
                self.dispatcher.send(partition, advance.outbox_seq, prepared.records.get(partition, []), sync)
        self.metrics.unconfirmed_batches.set(self.dispatcher.unconfirmed())

    def forget(self, prepared: Prepared) -> None:
        """Nothing has landed: every coroutine that was ticked is ahead of its record_version and goes (protocol 17)."""
        self.cache.drop(prepared.kept)
        abandon(cached.live for cached in prepared.kept.values())
        self.committer.cancel(prepared)

    # -- partitions come and go (ownership.Owner) -------------------------------------------

    def taken(self, owned: Owned, found: Taken, recreated: list[str]) -> None:
        self.suspects.taken(found)
        self.dispatcher.open(owned.partition, owned.confirmed)
        self.intake.taken(owned.partition, found.now)
        self.conflicts.waits.put_behind(self.intake.waiting(owned.partition))
        self.takeover.begin(owned, found, recreated)

    def releasing(self, partitions: frozenset[int]) -> None:
        """The last commit of partitions that go: what is confirmed, and what still runs here (protocol 13)."""
        self.log.flush(1.0)
        work = self.takeover.hand_over(partitions, self.ownership.owned)
        work.touched.update(partitions)
        # Of those alone: if this commit fails, what was not delivered for the others is still to be dealt with.
        going = {p: owned for p, owned in self.ownership.owned.items() if p in partitions}
        try:
            self.undelivered.take(work, going, self.dispatcher)
            self.advance(work)
        except Exception as error:  # noqa: BLE001 - the next owner redrives what is not recorded: a batch or two (R5)
            _log.warning("partitions let go without a last commit", error=str(error))

    def gone(self, partitions: frozenset[int]) -> None:
        self._resting -= partitions
        self.gauges.forget(partitions)
        self.dispatcher.close(partitions)
        self.timers.close(partitions)
        self.heartbeats.close(partitions)
        self.intake.forget(partitions)
        self.conflicts.waits.forget(partitions)
        self.takeover.forget(partitions)
        self.cache.close(partitions)

    # -- small things -----------------------------------------------------------------------

    def _touch_idle(self, work: Work) -> None:
        """When nothing else is committed for a while, record what the broker has confirmed since."""
        crowded = bool(self._resting)
        if not work.empty() or (
            not crowded and self.clock.monotonic() - self.committed_at < self.config.confirm_idle_s
        ):
            return
        slow_s = 0.0 if crowded else self.config.sync_row_s
        work.touched.update(partition for _, partition in self.dispatcher.slow_sync(slow_s))
        for partition, owned in self.ownership.owned.items():
            confirmed = self.dispatcher.confirmed(partition)
            if confirmed > owned.confirmed or owned.ids_changed:
                work.touched.add(partition)

    def _crowded(self) -> bool:
        """Whether too much is unconfirmed; reading is paused while that is so, and goes on after it (protocol 11)."""
        crowded = self.dispatcher.crowding() >= 1
        if crowded:
            fresh = self.ownership.owned.keys() - self._resting
            self.log.pause(fresh)
            self._resting |= fresh
        elif self._resting:
            self.log.resume(self._resting & self.ownership.owned.keys())
            self._resting = frozenset()
        return crowded

    def _rest(self) -> Work:
        """Take nothing in but acknowledgements, until the broker has caught up."""
        stray = {received.partition for received in self.intake.poll(self.config.idle_poll_s / 10)}
        # What came all the same was not applied: read it again.
        self.ownership.retake(stray)
        return Work()

    def _sample(self) -> None:
        """Look at Postgres's clock now and then, also when idle: an outage is seen in time, and no clock drifts away."""
        now = self.clock.monotonic()
        if now - self._sampled_at >= self.config.sweep_s:
            self._sampled_at = now
            if not self.ownership.store_down:
                self.clock.observe(self.store.ping())
            elif not self.ownership.waiting():
                self.ownership.reconnect()  # who waits for a partition does that anyway

    def _topic_counts(self) -> Mapping[str, int]:
        """Partition counts; while Kafka is away, those that were known last."""
        with contextlib.suppress(LogUnavailable):
            self._counts = self.log.partition_counts()
        return self._counts

    def _drain(self) -> None:
        with ExitStack() as ending:  # whatever goes wrong on the way
            ending.callback(self.store.close)
            ending.callback(self.log.close)
            self.committer.stop_sync()
            until = self.clock.monotonic() + self.config.drain_s
            while self.dispatcher.slow_sync(0.0) and self.clock.monotonic() < until:
                self.guarded_turn()
            self.log.flush(max(0.0, until - self.clock.monotonic()))
            self.ownership.revoked(frozenset(self.ownership.owned))
