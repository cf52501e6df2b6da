"""Step 1 of the loop: take what has come, from Kafka, from local workers, from the inbox, and from the clock."""

from __future__ import annotations

import contextlib
import functools
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from ductor_stream.coordinator.cache import RunCache
from ductor_stream.coordinator.caught_up import RESULTS
from ductor_stream.coordinator.config import CoordinatorConfig
from ductor_stream.coordinator.deadlines import Deadlines
from ductor_stream.coordinator.heartbeats import Heartbeats
from ductor_stream.coordinator.letters import DeadLetters
from ductor_stream.coordinator.ownership import Owned
from ductor_stream.coordinator.timers import Timers
from ductor_stream.coordinator.work import Entry, Work
from ductor_stream.engine.ids import partition_of
from ductor_stream.errors import DataError, LogUnavailable, TransientError
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
    Undeliverable,
)
from ductor_stream.protocol.inbound import Beat, ForRun, InboundDecoder, WakeupHint, record_identity
from ductor_stream.protocol.inbox import (
    decode_event,
    decode_outgoing,
    decode_received,
    encode_received,
    run_of_event,
    run_of_row,
)
from ductor_stream.protocol.outbound import Encoder
from ductor_stream.protocol.topics import Topics
from ductor_stream.telemetry.logs import get_logger
from ductor_stream.telemetry.metrics import Metrics

_log = get_logger(__name__)

_NEWER_MS = 15_000
"""Between two looks at an event of the inbox that a newer release wrote."""

_INBOX_BYTES = 32_000_000
"""Of rows taken in a turn, about: a start is written up to four times (state, history, its first step, that step's task)."""

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
        self._deadlines = Deadlines(config, (self._log, self._clock), memory, metrics)
        self._metrics = metrics
        self._n = partitions
        self._hinted: set[int] = set()
        self._doubtful: list[tuple[LostRange, float]] = []
        self._results: deque[tuple[bytes, bytes]] = deque()
        """Of local attempts, not taken yet: they come all at once, and ``limit`` may be 1."""
        self._stalled: set[int] = set()
        self._swept_at = 0.0
        self._local_wait = config.local_poll_s
        self.limit = config.batch_limit
        """How many inputs to take at a time: 1 while somebody looks for a run that kills its owner."""

    def taken(self, partition: int, now: int) -> None:
        """A partition is ours, from that moment (ms of Postgres's clock) on: its inbox and its timers are to be looked at."""
        self._hinted.add(partition)
        if partition < self._n:  # else it is nobody's home
            self._deadlines.taken(partition, now)

    def hint(self, partitions: Iterable[int]) -> None:
        """These partitions' inboxes have something."""
        self._hinted.update(partitions)

    def forget(self, partitions: Iterable[int]) -> None:
        """These partitions are no longer ours."""
        self._hinted.difference_update(partitions)
        self._deadlines.forget(partitions)

    def take(self, owned: Mapping[int, Owned], until: float | None) -> Work:
        """Wait for work, at most until that monotonic time, and take a batch of it."""
        work = Work()
        # First what local attempts have to say, and what has waited: it may answer for what seems overdue.
        self._take_local(work, owned, 0.0)
        if self.limit > 1 or work.empty():
            self._take_inbox(work, owned)
        if self.limit > 1 or work.empty():
            self._deadlines.take(work, owned, min(self.limit, self._config.due_limit))
        wait = 0.0 if not work.empty() else self._wait(until)
        if self._local is not None and self._local.busy() and wait > 0:
            self._take_local(work, owned, min(wait, self._local_wait))
            wait = 0.0
            self._local_wait = self._config.local_poll_s if work.entries else min(self._local_wait * 1.5, 0.02)
        records = self.poll(wait) if self.limit > 1 or work.empty() else []
        self.let_go(work, owned)
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

    def let_go(self, work: Work, owned: Mapping[int, Owned]) -> None:
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
        if mine is None or received.partition in self._stalled:
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
        except TransientError as error:
            self._stall(received.partition, error)
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

    def _stall(self, partition: int, error: TransientError) -> None:
        """What a record needs to be read is away (a schema of a registry): its partition waits for it, the others go on."""
        if partition not in self._stalled:
            _log.warning("a partition waits for what one of its records needs", partition=partition, error=str(error))
        self._stalled.add(partition)

    def stalled(self) -> set[int]:
        """Partitions that have to wait, and to be taken anew: told once."""
        stalled, self._stalled = self._stalled, set()
        return stalled

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
        self._results.extend(self._local.results(0.0 if self._results else timeout))
        while self._results and (self.limit > 1 or work.empty()):
            key, value = self._results.popleft()
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
        room = _INBOX_BYTES
        for partition in sorted(self._hinted & owned.keys()):
            if self.limit == 1 and not work.empty():
                break  # of several runs in a batch only one is noted, and another one may be what kills
            limit = min(self._config.inbox_limit, self.limit)
            read_at = self._clock.now()
            rows = self._store.inbox(partition, limit, read_at)
            work.inbox_read[partition] = (read_at, len(rows) < limit)
            if len(rows) < limit:
                self._hinted.discard(partition)
            for row in rows:
                if room <= 0:
                    # The rest comes with the next turn: what is written of it, too, has to fit into one statement.
                    self._hinted.add(partition)
                    work.inbox_read[partition] = (read_at, False)
                    return
                room -= len(row.body)
                work.consumed.append((partition, row.id))
                if row.kind == "produce":
                    work.produce(partition, [decode_outgoing(row.body)])
                elif row.kind == "engine":
                    self._take_event(work, row)
                else:
                    self._take_row(work, partition, row)

    def _take_event(self, work: Work, row: InboxRow) -> None:
        if (entry := _engine_entry(row)) is not None:
            work.entries.append(entry)
            return
        # After a roll back: what a newer release has written is left to an owner that knows it, and hurts nobody else.
        _log.warning(
            "an event that a newer release wrote waits for it", run_id=run_of_event(row.body), inbox_row=row.id
        )
        work.deferred.append((row.partition, row.id, self._clock.now() + _NEWER_MS, row.tries))

    def _take_row(self, work: Work, partition: int, row: InboxRow) -> None:
        try:
            entry = self._decoded(row)
        except DataError as error:
            self._letters.add(work, partition, decode_received(row.body), error)
            return
        except TransientError as error:
            self._stall(partition, error)
            return
        if entry is not None:
            work.entries.append(entry)

    def _decoded(self, row: InboxRow) -> Entry | None:
        received, topic_id = decode_received(row.body), row.source.partition("/")[0]
        message = self._decoder.decode(received, topic_id)
        if isinstance(message, WakeupHint):
            return None
        entry = _entry(message, row.partition, received, topic_id)
        entry.tries, entry.row = row.tries, row.id
        return entry

    def waiting(self, partition: int) -> dict[str, tuple[int, int]]:
        """Runs with inputs that were put off: (partition, until when). Raises StoreUnavailable."""
        found: dict[str, tuple[int, int]] = {}
        after = 0
        while rows := self._store.put_off(partition, self._config.inbox_limit, after):
            after = rows[-1].id
            for row in rows:
                run_id = run_of_row(row.kind, row.body)
                found[run_id] = (partition, max(row.not_before or 0, found.get(run_id, (0, 0))[1]))
        return found


def _engine_entry(row: InboxRow) -> Entry | None:
    found = decode_event(row.body)
    if found is None:
        return None
    run_id, event = found
    return Entry(run_id, row.partition, event, inbox_body=row.body, tries=row.tries, row=row.id)


def _report_undelivered(failed: Sequence[Undeliverable]) -> None:
    for each in failed:
        told = "result of a local attempt not delivered; its attempt will be redriven"
        _log.warning(told, run_id=each.record.key.decode("utf-8", "replace"), error=each.error)


@functools.lru_cache(maxsize=65_536)
def _home(run_id: str, partitions: int) -> int:
    """The partition that a run lives on; a run has many events, and murmur2 in Python costs 2 µs each."""
    return partition_of(run_id.encode(), partitions)


def _entry(message: ForRun | Beat, partition: int, received: Received, topic_id: str = "") -> Entry:
    if isinstance(message, Beat):
        return Entry(message.run_id, partition, message, received, topic_id=topic_id)
    return Entry(message.run_id, partition, message.event, received, message.dedupe, topic_id=topic_id)
