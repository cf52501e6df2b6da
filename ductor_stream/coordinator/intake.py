"""Step 1 of the loop: take what has come, from Kafka, from local workers, from the inbox, and from the clock."""

from __future__ import annotations

import contextlib
import functools
from collections import Counter
from collections.abc import Iterable, Mapping

import msgspec

from ductor_stream.coordinator.cache import RunCache
from ductor_stream.coordinator.config import CoordinatorConfig
from ductor_stream.coordinator.deadlines import RESULTS, Deadlines
from ductor_stream.coordinator.heartbeats import Heartbeats
from ductor_stream.coordinator.letters import DeadLetters
from ductor_stream.coordinator.ownership import Owned
from ductor_stream.coordinator.timers import Timers
from ductor_stream.coordinator.work import Entry, Work
from ductor_stream.engine.ids import partition_of
from ductor_stream.errors import DataError, LogUnavailable
from ductor_stream.ports import (
    INBOUND,
    Clock,
    EventLog,
    InboxRow,
    LocalWorkers,
    LostRange,
    Outgoing,
    Received,
    RunStore,
)
from ductor_stream.protocol.inbound import Beat, ForRun, InboundDecoder, WakeupHint, record_identity
from ductor_stream.protocol.inbox import decode_event, decode_outgoing, decode_received, encode_received
from ductor_stream.protocol.outbound import Encoder
from ductor_stream.protocol.topics import Topics
from ductor_stream.telemetry.logs import get_logger
from ductor_stream.telemetry.metrics import Metrics

_log = get_logger(__name__)

_DOUBT_S = 5.0
"""A log that ends before our position was truncated, or is another topic's: by then the topic ids have told which."""


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
        self._deadlines = Deadlines((self._log, self._clock), memory, metrics)
        self._metrics = metrics
        self._n = partitions
        self._hinted: set[int] = set()
        self._doubtful: list[tuple[LostRange, float]] = []
        self._swept_at = 0.0
        self._local_wait = config.local_poll_s
        self.limit = config.batch_limit
        """How many inputs to take at a time: 1 while somebody looks for a run that kills its owner."""

    def hint(self, partitions: Iterable[int]) -> None:
        """These partitions' inboxes have something."""
        self._hinted.update(partitions)

    def forget(self, partitions: Iterable[int]) -> None:
        """These partitions are no longer ours."""
        self._hinted.difference_update(partitions)

    def take(self, owned: Mapping[int, Owned], until: float | None) -> Work:
        """Wait for work, at most until that monotonic time, and take a batch of it."""
        work = Work()
        # First what local attempts have to say: it may answer for what seems overdue.
        self._take_local(work, owned, 0.0)
        if self.limit > 1 or work.empty():
            self._deadlines.take(work, owned, min(self.limit, self._config.due_limit))
        if self.limit > 1 or work.empty():
            self._take_inbox(work, owned)
        wait = 0.0 if not work.empty() else self._wait(until)
        if self._local is not None and self._local.busy() and wait > 0:
            self._take_local(work, owned, min(wait, self._local_wait))
            wait = 0.0
            self._local_wait = self._config.local_poll_s if work.entries else min(self._local_wait * 1.5, 0.02)
        records = self.poll(wait) if self.limit > 1 or work.empty() else []
        self._let_go(work, owned)
        self._audit(work, owned)
        for received in records:
            self._take_record(work, owned, received)
        for topic, count in Counter(received.topic for received in records if received.partition in owned).items():
            self._metrics.events[topic].inc(count)
        return work

    def poll(self, wait: float) -> list[Received]:
        """Without Kafka, timers and local attempts go on: what they decide waits in the outbox."""
        try:
            return self._log.poll(wait, self.limit)
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
        due = self._deadlines.next_in()
        if due is not None:
            wait = min(wait, due / 1000)
        return max(0.0, wait)

    def _let_go(self, work: Work, owned: Mapping[int, Owned]) -> None:
        """Partitions may have gone within the poll, and with them what was taken for them before it."""
        gone = work.partitions() - owned.keys()
        for entry in work.drop(gone) if gone else ():
            if entry.received is not None and entry.received.partition < 0:
                self._by_topic(entry.received, entry.partition)

    # -- Kafka ------------------------------------------------------------------------------

    def _audit(self, work: Work, owned: Mapping[int, Owned]) -> None:
        """Records that nobody will ever read: say so, and go on behind them (protocol 9)."""
        now = self._clock.monotonic()
        doubtful, self._doubtful = self._doubtful, []
        for gap in self._log.gaps():
            if gap.to_offset > gap.from_offset:
                self._skip(work, owned, gap)
            else:
                self._log.look_again()
                doubtful.append((gap, now + _DOUBT_S))
        for gap, until in doubtful:
            mine = owned.get(gap.partition)
            if mine is None or self._is_renewed(mine, self._inbound[INBOUND.index(gap.topic)]):
                continue  # another topic: its partition is about to be taken anew, and that tells
            if now < until:
                self._doubtful.append((gap, until))
            else:
                self._letters.lost(work, gap.partition, gap.topic, (gap.from_offset, gap.to_offset))

    def _skip(self, work: Work, owned: Mapping[int, Owned], gap: LostRange) -> None:
        mine = owned.get(gap.partition)
        if mine is None:
            return
        self._metrics.records_lost.inc(gap.to_offset - gap.from_offset)
        self._letters.lost(work, gap.partition, gap.topic, (gap.from_offset, gap.to_offset))
        # Committed too, so that the next owner does not find the same gap.
        positions = work.positions.setdefault(gap.partition, list(mine.offsets))
        positions[INBOUND.index(gap.topic)] = gap.to_offset

    def _is_renewed(self, mine: Owned, name: str) -> bool:
        with contextlib.suppress(LogUnavailable):
            known = mine.topic_ids.get(name)
            return known is not None and self._log.topic_ids().get(name, known) != known
        return False

    def _take_record(self, work: Work, owned: Mapping[int, Owned], received: Received) -> None:
        mine = owned.get(received.partition)
        if mine is None:
            return
        index = INBOUND.index(received.topic)
        positions = work.positions.setdefault(received.partition, list(mine.offsets))
        positions[index] = received.offset + 1
        topic_id = mine.topic_ids.get(self._inbound[index], "")
        try:
            message = self._decoder.decode(received, topic_id)
        except DataError as error:
            self._letters.add(work, received.partition, received, error)
            return
        if isinstance(message, WakeupHint):
            self._hinted.add(received.partition)
            return
        home = _home(message.run_id, self._n)
        if home == received.partition:
            work.entries.append(_entry(message, home, received, topic_id))
        else:
            self.send_home(
                work, received, home, message.run_id, record_identity(topic_id, received.partition, received.offset)
            )

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
            home = _home(key.decode(), self._n)
            if home not in owned:
                self._by_topic(received, home)
                continue
            try:
                message = self._decoder.decode(received, "")
            except DataError as error:
                self._letters.add(work, home, received, error)
                continue
            if not isinstance(message, WakeupHint):
                work.entries.append(_entry(message, home, received))

    def _by_topic(self, received: Received, home: int) -> None:
        """The partition went elsewhere while the attempt ran here: its new owner hears by the topic."""
        topic = self._inbound[RESULTS]
        self._log.produce([Outgoing(topic, received.key or b"", received.value or b"", [], home)], _report_undelivered)

    # -- inbox ------------------------------------------------------------------------------

    def _take_inbox(self, work: Work, owned: Mapping[int, Owned]) -> None:
        now = self._clock.monotonic()
        if now - self._swept_at >= self._config.sweep_s:
            self._swept_at = now
            self._hinted.update(owned)
        for partition in sorted(self._hinted & owned.keys()):
            limit = min(self._config.inbox_limit, self.limit)
            rows = self._store.inbox(partition, limit, self._clock.now())
            if len(rows) < limit:
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
        received, topic_id = decode_received(row.body), row.source.partition("/")[0]
        try:
            message = self._decoder.decode(received, topic_id)
        except DataError as error:
            self._letters.add(work, partition, received, error)
            return
        if not isinstance(message, WakeupHint):
            entry = _entry(message, partition, received, topic_id)
            entry.tries = row.tries
            work.entries.append(entry)


def _report_undelivered(failed: object) -> None:
    if failed:
        _log.warning("result of a local attempt not delivered; its attempt will be redriven", failed=str(failed)[:500])


@functools.lru_cache(maxsize=65_536)
def _home(run_id: str, partitions: int) -> int:
    """The partition that a run lives on; a run has many events, and murmur2 in Python costs 2 µs each."""
    return partition_of(run_id.encode(), partitions)


def _entry(message: ForRun | Beat, partition: int, received: Received, topic_id: str = "") -> Entry:
    if isinstance(message, Beat):
        return Entry(message.run_id, partition, message, received, topic_id=topic_id)
    return Entry(message.run_id, partition, message.event, received, message.dedupe, topic_id=topic_id)
