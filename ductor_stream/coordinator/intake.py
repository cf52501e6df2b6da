"""Step 1 of the loop: take what has come, from Kafka, from local workers, from the inbox, and from the clock."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec
import structlog

from ductor_stream.coordinator.cache import RunCache
from ductor_stream.coordinator.config import CoordinatorConfig
from ductor_stream.coordinator.heartbeats import Heartbeats
from ductor_stream.coordinator.letters import DeadLetters
from ductor_stream.coordinator.ownership import Owned
from ductor_stream.coordinator.timers import Timers
from ductor_stream.coordinator.work import Entry, Work
from ductor_stream.engine.events import AttemptTimedOut, TimerFired
from ductor_stream.engine.ids import partition_of
from ductor_stream.engine.state import RunState
from ductor_stream.engine.tick import due_events, wake_at
from ductor_stream.errors import DataError, LogUnavailable
from ductor_stream.ports import INBOUND, Clock, EventLog, InboxRow, LocalWorkers, Outgoing, Received, RunStore
from ductor_stream.protocol.inbound import Beat, ForRun, InboundDecoder, WakeupHint, record_identity
from ductor_stream.protocol.inbox import decode_event, decode_outgoing, decode_received, encode_received
from ductor_stream.protocol.outbound import Encoder
from ductor_stream.protocol.topics import Topics
from ductor_stream.telemetry.metrics import Metrics

_log = structlog.get_logger(__name__)

RESULTS = INBOUND.index("attempt-results")


class Intake:
    """Collects the work of one turn, in order per source. Decides nothing about runs."""

    def __init__(
        self,
        config: CoordinatorConfig,
        topics: Topics,
        ports: tuple[RunStore, EventLog, Clock, LocalWorkers | None],
        codec: tuple[InboundDecoder, Encoder, DeadLetters],
        memory: tuple[RunCache, Timers, Heartbeats],
        metrics: Metrics,
        partitions: int,
    ) -> None:
        self._config, self._inbound = config, topics.inbound_names
        self._store, self._log, self._clock, self._local = ports
        self._decoder, self._encoder, self._letters = codec
        self._cache, self._timers, self._heartbeats = memory
        self._metrics = metrics
        self._n = partitions
        self._hinted: set[int] = set()
        self._swept_at = 0.0
        self._local_wait = config.local_poll_s

    def hint(self, partitions: Iterable[int]) -> None:
        """These partitions' inboxes have something."""
        self._hinted.update(partitions)

    def forget(self, partitions: Iterable[int]) -> None:
        """These partitions are no longer ours."""
        self._hinted.difference_update(partitions)

    def take(self, owned: Mapping[int, Owned], until: float | None) -> Work:
        """Wait for work, at most until that monotonic time, and take a batch of it."""
        work = Work()
        self._take_due(work, owned)
        self._take_inbox(work, owned)
        self._take_local(work, owned, 0.0)
        wait = 0.0 if not work.empty() else self._wait(until)
        if self._local is not None and self._local.busy() and wait > 0:
            self._take_local(work, owned, min(wait, self._local_wait))
            wait = 0.0
            self._local_wait = self._config.local_poll_s if work.entries else min(self._local_wait * 1.5, 0.02)
        for received in self._poll(wait):
            self._take_record(work, owned, received)
        return work

    def _poll(self, wait: float) -> list[Received]:
        """Without Kafka, timers and local attempts go on: what they decide waits in the outbox."""
        try:
            return self._log.poll(wait, self._config.batch_limit)
        except LogUnavailable as error:
            self._metrics.outages["kafka"].inc()
            _log.warning("kafka away", error=str(error))
            self._clock.sleep(min(wait, 0.2))
            return []

    def _wait(self, until: float | None) -> float:
        """How long nothing is due (seconds)."""
        wait = self._config.idle_poll_s
        now = self._clock.monotonic()
        if until is not None:
            wait = min(wait, until - now)
        due = [at for at in (self._timers.next_at(), self._heartbeats.next_at()) if at is not None]
        if due:
            wait = min(wait, (min(due) - self._clock.now()) / 1000)
        return max(0.0, wait)

    # -- Kafka ------------------------------------------------------------------------------

    def _take_record(self, work: Work, owned: Mapping[int, Owned], received: Received) -> None:
        mine = owned.get(received.partition)
        if mine is None:
            return
        index = INBOUND.index(received.topic)
        positions = work.positions.setdefault(received.partition, list(mine.offsets))
        positions[index] = received.offset + 1
        self._metrics.events[received.topic].inc()
        topic_id = mine.topic_ids.get(self._inbound[index], "")
        try:
            message = self._decoder.decode(received, topic_id)
        except DataError as error:
            self._letters.add(work, received.partition, received, error)
            return
        if isinstance(message, WakeupHint):
            self._hinted.add(received.partition)
            return
        home = partition_of(message.run_id.encode(), self._n)
        if home == received.partition:
            work.entries.append(_entry(message, home, received))
        else:
            self.send_home(work, received, home, message.run_id, record_identity(topic_id, received.partition, received.offset))

    def send_home(self, work: Work, received: Received, home: int, run_id: str, source: str, tries: int = 0) -> None:
        """Hand an event to the partition that its run lives on: a row, and a hint (R12, protocol 8)."""
        self._metrics.sent_home.inc()
        work.inbox.append(InboxRow(home, source, "event", encode_received(received), tries=tries))
        hint = msgspec.structs.replace(self._encoder.wakeup(run_id), partition=home)
        work.produce(received.partition, [hint])

    # -- local workers ----------------------------------------------------------------------

    def _take_local(self, work: Work, owned: Mapping[int, Owned], timeout: float) -> None:
        if self._local is None:
            return
        for key, value in self._local.results(timeout):
            received = Received("attempt-results", -1, -1, key, value, ())
            message = self._decoder.decode(received, "")
            if isinstance(message, WakeupHint):
                continue
            home = partition_of(key, self._n)
            if home in owned:
                work.entries.append(_entry(message, home, received))
            else:
                # The partition went elsewhere while the attempt ran: its new owner hears by the topic.
                topic = self._inbound[RESULTS]
                self._log.produce([Outgoing(topic, key, value, [], home)], _report_undelivered)

    # -- inbox ------------------------------------------------------------------------------

    def _take_inbox(self, work: Work, owned: Mapping[int, Owned]) -> None:
        now = self._clock.monotonic()
        if now - self._swept_at >= self._config.sweep_s:
            self._swept_at = now
            self._hinted.update(p for p in owned if p < self._n)
        for partition in sorted(self._hinted & owned.keys()):
            rows = self._store.inbox(partition, self._config.inbox_limit, self._clock.now())
            if len(rows) < self._config.inbox_limit:
                self._hinted.discard(partition)
            for row in rows:
                work.consumed.append((partition, row.id))
                if row.kind == "produce":
                    work.produce(partition, [decode_outgoing(row.body)])
                elif row.kind == "engine":
                    run_id, event = decode_event(row.body)
                    work.entries.append(Entry(run_id, partition, event, inbox_body=row.body, tries=row.tries))
                else:
                    self._take_row(work, partition, row)

    def _take_row(self, work: Work, partition: int, row: InboxRow) -> None:
        received = decode_received(row.body)
        try:
            message = self._decoder.decode(received, row.source.partition("/")[0])
        except DataError as error:
            self._letters.add(work, partition, received, error)
            return
        if not isinstance(message, WakeupHint):
            entry = _entry(message, partition, received)
            entry.tries = row.tries
            work.entries.append(entry)

    # -- the clock --------------------------------------------------------------------------

    def _take_due(self, work: Work, owned: Mapping[int, Owned]) -> None:
        now = self._clock.now()
        self._timers.refresh(now)
        due = self._timers.due(now, self._config.batch_limit)
        if due:
            runs = self._cache.load(run_id for _, _, run_id in due)
            for at, partition, run_id in due:
                state = runs[run_id].state
                if state is not None and partition in owned:
                    self._take_due_run(work, owned[partition], state, at, now)
        for heard, code in self._heartbeats.due(now):
            row = heard.open
            if row.partition not in owned:
                continue
            # Kept until the commit that closes it has landed: were it lost, nobody would give the attempt up.
            self._heartbeats.again(heard, now)
            if heard.watermark is None:
                heard.watermark = self._end_of_results(row.partition)
            if not self._read_up_to(owned[row.partition], heard.watermark):
                continue
            event = AttemptTimedOut(row.execution, row.node_id, row.generation, code)
            work.entries.append(Entry(row.run_id, row.partition, event))

    def _take_due_run(self, work: Work, owned: Owned, state: RunState, at: int, now: int) -> None:
        run_id = state.header.run_id
        found = 0
        for event in due_events(state, now):
            if isinstance(event, AttemptTimedOut) and not self._may_time_out(owned, run_id, event):
                continue
            work.entries.append(Entry(run_id, owned.partition, event, due_at=at))
            found += 1
            if isinstance(event, TimerFired):
                self._metrics.timer_lateness_seconds.observe((now - at) / 1000)
        if not found:
            next_at = wake_at(state)
            self._timers.set(owned.partition, run_id, None if next_at is None else max(next_at, now + 50))

    def _may_time_out(self, owned: Owned, run_id: str, event: AttemptTimedOut) -> bool:
        heard = self._heartbeats.find((run_id, event.execution, event.node_id))
        if event.code == "timeout_schedule_to_start" and heard is not None:
            return False
        return self._read_up_to(owned, self._end_of_results(owned.partition))

    def _end_of_results(self, partition: int) -> int | None:
        try:
            return self._log.end_offsets(partition)["attempt-results"]
        except LogUnavailable:
            return None

    def _read_up_to(self, owned: Owned, watermark: int | None) -> bool:
        """Whether results that came before the due time have been applied: time-outs wait for the log (protocol 21)."""
        if watermark is None:
            return False
        return max(owned.offsets[RESULTS], self._log.reached_end(owned.partition, "attempt-results")) >= watermark


def _report_undelivered(failed: object) -> None:
    if failed:
        _log.warning("result of a local attempt not delivered; its attempt will be redriven", failed=str(failed)[:500])


def _entry(message: ForRun | Beat, partition: int, received: Received) -> Entry:
    if isinstance(message, Beat):
        return Entry(message.run_id, partition, message, received)
    return Entry(message.run_id, partition, message.event, received, message.dedupe)
