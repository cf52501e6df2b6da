"""R9 in the simulation: what begins has an end, at its time, and everybody is told."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Sequence

import msgspec

from ductor_stream.engine.events import AnyEvent, Continuation, RunTimedOut, TimerFired
from ductor_stream.engine.state import CancelRequested, decode_header
from ductor_stream.ports import Batch, InboxRow, PartitionAdvance, RunWrite
from ductor_stream.protocol.inbound import ForRun, InboundDecoder
from ductor_stream.protocol.inbox import decode_event, decode_received, run_of_row
from ductor_stream.protocol.lifecycle import UNNUMBERED, LifecycleEvent, decode_lifecycle
from ductor_stream.protocol.topics import Topics
from ductor_stream.testing.simulation.checks import Checker, Told, promises, records_of, source_of, state_of, told
from ductor_stream.testing.simulation.memory_broker import Broker, Topic
from ductor_stream.testing.simulation.memory_database import Database

_SAID = re.compile(r": (?:(\d+) time\(s\) just now)?(?:; )?(?:(\d+) input\(s\) waited in the inbox, (\d+) time)?")
"""How often a run has lost in place; how many inputs waited, and how often at most."""

LATEST_MS = 30_000
"""How late a timer may be in calm weather: time enough to take the partitions."""


_TIMED = (TimerFired, RunTimedOut)


class R9NoSilentHang(Checker):
    """Every run has ended, and everybody could see each turn of its life."""

    rule = "R9"

    def __init__(self) -> None:
        self._seen: dict[str, set[int]] = {}

    def heard(self, event: LifecycleEvent) -> None:
        if event.type not in UNNUMBERED:
            self._seen.setdefault(event.run_id, set()).add(event.seq)

    def finish(self, database: Database) -> None:
        for run_id, run in database.runs.items():
            header = decode_header(run.header or b"")
            missing = set(range(1, header.lifecycle_seq + 1)) - self._seen.get(run_id, set())
            if missing:
                raise self.broken(f"{run_id}: lifecycle events {sorted(missing)} of {header.lifecycle_seq} never came")


class R9CancelIsTold(Checker):
    """A cancel that an execution hands on to the next one waits there to be told."""

    rule = "R9"

    def committed(self, database: Database, batch: Batch, txid: int) -> None:
        for run in batch.runs:
            event = records_of(run.entry)[-1].event
            if not isinstance(event, Continuation) or not event.cancel_requested or run.closed_at is not None:
                continue
            state = state_of(database, run.run_id)
            if state is None or not any(isinstance(held.fact, CancelRequested) for held in state.held):
                raise self.broken(f"{run.run_id}: its next execution will never hear that it was cancelled")


class R9TimersInTime(Checker):
    """In calm weather a timer fires when it is due, and not when its owner happens to look again.

    ``calm_since`` (ms) is None in a storm; what came due before it may be late.
    """

    rule = "R9"

    def __init__(self) -> None:
        self.calm_since: int | None = None

    def committing(self, database: Database, batch: Batch, txid: int) -> None:
        if self.calm_since is None:
            return
        for run in batch.runs:
            before = database.runs.get(run.run_id)
            if before is None or before.wake_at is None:
                continue
            due = max(before.wake_at, self.calm_since)
            for record in records_of(run.entry):
                if isinstance(record.event, TimerFired) and record.now > due + LATEST_MS:
                    raise self.broken(f"{run.run_id}: a timer was {(record.now - due) / 1000:.0f} s late")


class R9InputBeforeTimers(Checker):
    """What was in the log when a partition was taken is applied before any timer of it, unless that takes ``within_ms``.

    A timer that the last owner had fired, and that has lost its version check since, waits in the inbox, not for the log.
    """

    rule = "R9"

    def __init__(self, broker: Broker, now: Callable[[], int], within_ms: float) -> None:
        self._broker, self._now, self._within_ms = broker, now, within_ms
        self._taken: dict[int, tuple[int, list[tuple[Topic, int]]]] = {}
        """Partition -> when it was taken, and where its logs ended then."""

    def took(self, partition: int, token: str, epoch: int) -> None:
        topics = [self._broker.topics[name] for name in self._broker.names.inbound_names[:2]]
        ends = [(topic, topic.partitions[partition].end) for topic in topics]
        self._taken[partition] = self._now(), ends

    def committing(self, database: Database, batch: Batch, txid: int) -> None:
        timed = [run for run in batch.runs if any(isinstance(r.event, _TIMED) for r in records_of(run.entry))]
        if not timed:
            return
        rows = [database.inbox[partition][id] for partition, id in batch.consumed]
        waited = {run_of_row(row.kind, row.body) for row in rows if row.kind == "engine"}
        previous = {advance.partition: advance.previous for advance in batch.partitions}
        for run in timed:
            if run.run_id not in waited and (unread := self._unread(run.partition, previous[run.partition])):
                raise self.broken(f"{run.run_id}: a timer fires while {unread}, there when it was taken, is unread")

    def _unread(self, partition: int, previous: Sequence[int]) -> str:
        taken_at, ends = self._taken[partition]
        if self._now() - taken_at >= self._within_ms:
            return ""
        for read, (topic, end) in zip(previous, ends, strict=False):
            stored = topic.partitions[partition]
            for offset in range(max(read, stored.start), end):
                if self._broker.topics[topic.name] is topic:
                    return f"{topic.name} {partition}/{offset}"
        return ""


class R9ContendedIsTold(Checker):
    """A run that has lost version checks is told so when it lands, be it in place or by way of the inbox, and no other.

    How often in place is as the store has said; so is the count of rounds that a row carries. Newer input waits behind
    such rows and has lost nothing.
    """

    rule = "R9"

    def __init__(self, topics: Topics) -> None:
        self._topics, self._decoder = topics, InboundDecoder(topics)
        self._losers: dict[str, tuple[str, int]] = {}
        """Run -> token of the owner under which it has lost, and how often, until that owner's batch has landed."""
        self._known: set[Told] = set()

    def lost(self, batch: Batch, run_ids: Collection[str]) -> None:
        tokens = {run.run_id: advance.token for run, advance in _owners(batch)}
        for run_id in run_ids & tokens.keys():
            token, times = self._losers.get(run_id, ("", 0))
            self._losers[run_id] = tokens[run_id], times + 1 if token == tokens[run_id] else 1

    def committing(self, database: Database, batch: Batch, txid: int) -> None:
        losers = self._counts(database, batch)
        rows: dict[str, list[InboxRow]] = {}
        for partition, id in batch.consumed:
            row = database.inbox[partition][id]
            if row.tries:
                rows.setdefault(run_of_row(row.kind, row.body), []).append(row)
        reasons = {event.run_id: event.reason for event in self._contended(batch)}
        for run_id, reason in reasons.items():
            said = _SAID.search(reason)
            times, inputs, tries = map(int, said.groups("0")) if said is not None else (0, 0, 0)
            waited = [row.tries for row in rows.get(run_id, [])]
            if times != losers.get(run_id, 0) or inputs > len(waited) or (tries not in waited if inputs else not times):
                raise self.broken(
                    f"{run_id} is told {reason!r}: lost {losers.get(run_id, 0)} times, its inputs {waited}"
                )
        for run in batch.runs if rows or losers else ():
            if run.expected and run.run_id not in reasons:
                if run.run_id in losers:
                    raise self.broken(f"{run.run_id} is not told that it has just lost {losers[run.run_id]} times")
                applied = {source_of(record.event) for record in records_of(run.entry)}
                for row in rows.get(run.run_id, []):
                    if (event := self._event(row)) is not None and source_of(event) in applied:
                        raise self.broken(f"{run.run_id} is not told that {row.source} lost {row.tries} rounds")

    def _counts(self, database: Database, batch: Batch) -> dict[str, int]:
        """Rounds are counted for who has lost one, and for nobody else. Returns who lands, and has lost in place."""
        if not (self._losers or batch.inbox or batch.deferred):
            return {}
        tokens = {advance.partition: advance.token for advance in batch.partitions}
        counted: dict[str, bool] = {}
        for row, tries in _put_off(database, batch):
            run_id = run_of_row(row.kind, row.body)
            lost = self._losers.get(run_id, ("", 0))[0] == tokens.get(row.partition)
            if tries > row.tries and not lost:
                raise self.broken(f"a lost round is counted for {run_id}, which has lost none")
            if lost:
                counted[run_id] = counted.get(run_id, False) or tries > row.tries
        written = {run.run_id for run in batch.runs}
        for run_id, so in counted.items():
            if not so and run_id not in written:
                raise self.broken(f"{run_id} has lost its version check, and its inputs wait as if it had not")
            if so and run_id in written:
                raise self.broken(f"{run_id} lands, and inputs of it wait as if it had not")
        landed = {run_id: each for run_id, each in self._losers.items() if each[0] in tokens.values()}
        self._losers = {run_id: each for run_id, each in self._losers.items() if run_id not in landed}
        return {run_id: times for run_id, (_, times) in landed.items()}

    def _contended(self, batch: Batch) -> Iterator[LifecycleEvent]:
        rows = (row.body for row in batch.inbox if row.kind == "produce")
        if not any(b"ductor.run.contended" in each for each in (*rows, *(a.outbox or b"" for a in batch.partitions))):
            return
        for record in promises(batch):
            # One that the broker did not take is promised again by a later commit.
            if record.topic == self._topics.run_lifecycle and told(record) not in self._known:
                event = decode_lifecycle(record.key, record.value, record.headers)
                if event.type == "run.contended":
                    self._known.add(told(record))
                    yield event

    def _event(self, row: InboxRow) -> AnyEvent | None:
        if row.kind == "engine":
            known = decode_event(row.body)
            return known[1] if known is not None else None
        message = self._decoder.decode(decode_received(row.body), "")
        return message.event if isinstance(message, ForRun) else None


def _owners(batch: Batch) -> Iterator[tuple[RunWrite, PartitionAdvance]]:
    advances = {advance.partition: advance for advance in batch.partitions}
    return ((run, advances[run.partition]) for run in batch.runs)


def _put_off(database: Database, batch: Batch) -> Iterator[tuple[InboxRow, int]]:
    """Inputs that wait on in the inbox, or begin to, with the count that they have from now on."""
    for partition, id, _, tries in batch.deferred:
        yield database.inbox[partition][id], tries
    for row in batch.inbox:
        if "/conflict/" in row.source or row.source.startswith("own/"):
            yield msgspec.structs.replace(row, tries=0), row.tries
