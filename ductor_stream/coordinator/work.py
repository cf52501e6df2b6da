"""The values that pass between the steps of one batch."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import msgspec

from ductor_stream.coordinator.cache import Cached
from ductor_stream.engine.actions import EmitLifecycle, TellParent
from ductor_stream.engine.events import AnyEvent, ChildFinished, CommandReceived, Failure, RunStarted
from ductor_stream.engine.tick import Tick
from ductor_stream.errors import DataError
from ductor_stream.ports import InboxRow, MessageRow, OpenAttempt, Outgoing, Received
from ductor_stream.protocol.inbound import Beat
from ductor_stream.protocol.inbox import encode_event, encode_received


class Entry(msgspec.Struct):
    """One input for one run. ``received`` is the record it came as, ``inbox_body`` the row of another run's message
    (both None for what the owner itself noticed); ``row`` is the id of the inbox row that it was read from, if it was.

    ``topic_id`` is Kafka's id of that record's topic; ``dedupe`` is its (kind, id); ``tries`` counts conflicts that it has been through; ``due_at`` is set for timers (ms).
    """

    run_id: str
    partition: int
    input: AnyEvent | Beat
    received: Received | None = None
    dedupe: tuple[str, str] | None = None
    inbox_body: bytes | None = None
    topic_id: str = ""
    tries: int = 0
    due_at: int | None = None
    row: int | None = None

    @property
    def forks(self) -> bool:
        """Whether the run's whole history is needed to apply it."""
        event = self.input
        if isinstance(event, RunStarted):
            return event.since > 0
        return isinstance(event, CommandReceived) and event.kind in ("retry", "reset")

    @property
    def durable(self) -> bool:
        """Whether it came from outside: then it must be applied, or wait in a row, before its source is passed."""
        return self.received is not None or self.inbox_body is not None


class Work(msgspec.Struct):
    """What one turn has taken in: entries in order, and what the commit must say of their sources."""

    entries: list[Entry] = []
    loaded: dict[str, Cached] = {}
    """Runs that were read from Postgres to find these: for the first try."""
    positions: dict[int, list[int]] = {}
    """Partition -> next offsets of the inbound topics, for partitions that were read of."""
    inbox: list[InboxRow] = []
    consumed: list[tuple[int, int]] = []
    deferred: list[tuple[int, int, int | None, int]] = []
    """Of ``consumed`` what is put off once more: (partition, id, not_before, tries)."""
    inbox_read: dict[int, tuple[int, bool]] = {}
    """Partition -> when its inbox was read (ms), and whether to its end."""
    lost: dict[str, int] = {}
    """Runs that have lost version checks in earlier tries of this very batch, and how many."""
    waiting: dict[str, tuple[int, int]] = {}
    """Runs with inputs that are put off: partition, and until when (ms)."""
    outgoing: dict[int, list[Outgoing]] = {}
    """Partition -> dead letters and hints to produce after the commit."""
    payloads: list[tuple[str, bytes]] = []
    released: list[tuple[str, str, str]] = []
    handed: list[OpenAttempt] = []
    """SyncMatch attempts that go on running here while their partition goes elsewhere."""
    ended: list[tuple[int, str, int, str]] = []
    """Rows of open attempts to delete: (partition, run id, execution, node id)."""
    orphaned: list[tuple[int, str, TellParent]] = []
    """Of child runs that could not be started: (partition, run id, what its parent is told)."""
    touched: set[int] = set()
    """Partitions that must take part in the commit for another reason (a confirmation to record)."""

    def partitions(self) -> set[int]:
        """All partitions that the commit concerns."""
        found = {e.partition for e in self.entries}
        found.update(self.positions, self.outgoing, self.touched, (p for p, _ in self.consumed))
        found.update(row.partition for row in self.handed)
        return found

    def empty(self) -> bool:
        """Whether there is nothing to commit."""
        return not (self.entries or self.positions or self.inbox or self.consumed or self.outgoing or self.touched)

    def copy(self) -> Work:
        """A copy that one try of the batch may add to."""
        return msgspec.structs.replace(
            self,
            inbox=list(self.inbox),
            deferred=list(self.deferred),
            waiting=dict(self.waiting),
            outgoing={partition: list(records) for partition, records in self.outgoing.items()},
            payloads=list(self.payloads),
            released=list(self.released),
            orphaned=list(self.orphaned),
        )

    def put_off(self, entry: Entry, about: str, not_before: int | None, tries: int) -> None:
        """Apply the entry later: it keeps its place in the inbox, or gets one behind all that waits there.

        ``about`` is another one for each call: rows of the same source are one.
        """
        known = self.waiting.get(entry.run_id, (entry.partition, 0))
        self.waiting[entry.run_id] = (entry.partition, max(known[1], not_before or 0))
        if entry.row is not None:
            self.deferred.append((entry.partition, entry.row, not_before, tries))
        else:
            self.inbox.append(_as_row(entry, about, not_before, tries))

    def orphan(self, entry: Entry, error: DataError) -> None:
        """This input is given up: if it was to start a child run, whoever awaits that must hear of it (R9)."""
        event = entry.input
        if isinstance(event, RunStarted) and event.parent is not None:
            parent = event.parent
            failure = Failure(error.reason, "ChildNotStarted", str(error), retryable=False)
            told = ChildFinished(parent.execution, parent.node_id, entry.run_id, "refused", None, failure)
            self.orphaned.append((entry.partition, entry.run_id, TellParent(parent, 0, told)))

    def drop(self, partitions: set[int]) -> list[Entry]:
        """Take out what is there for these partitions; returns the entries among it. Nothing of it was committed."""
        dropped = [entry for entry in self.entries if entry.partition in partitions]
        self.entries = [entry for entry in self.entries if entry.partition not in partitions]
        self.consumed = [row for row in self.consumed if row[0] not in partitions]
        self.deferred = [row for row in self.deferred if row[0] not in partitions]
        for partition in partitions:
            self.positions.pop(partition, None)
            self.outgoing.pop(partition, None)
        return dropped

    def produce(self, partition: int, records: Iterable[Outgoing]) -> None:
        """Add records to what is produced after the commit, on behalf of a partition."""
        self.outgoing.setdefault(partition, []).extend(records)


class Ticked(msgspec.Struct):
    """One run after its tick. ``tick`` is None when the run does not exist and nothing began it, or it failed.

    ``messages`` are ids to remember; ``released`` buffered messages that were applied; ``beats`` are heartbeats, with
    whether they come from this very process (SyncMatch); ``lost`` are version checks that it has just lost. ``early`` are
    messages that wait for it to exist, and their bytes, where that was counted.
    """

    run_id: str
    partition: int
    entries: list[Entry]
    before: Cached
    tick: Tick | None = None
    messages: list[MessageRow] = []
    released: list[tuple[str, str, str]] = []
    beats: list[tuple[Beat, bool]] = []
    lost: int = 0
    early: tuple[int, int] | None = None

    def contended(self, now: int) -> list[EmitLifecycle]:
        """What is told of version checks that were lost before these inputs could land: now, and in earlier rounds (R9)."""
        rounds = [entry.tries for entry in self.entries if entry.tries]
        if not (rounds or self.lost) or self.before.state is None or self.tick is None or not self.tick.records:
            return []
        header, version = self.before.state.header, self.before.record_version + 1
        parts = [f"{self.lost} time(s) just now"] if self.lost else []
        if rounds:
            parts.append(f"{len(rounds)} input(s) waited in the inbox, {max(rounds)} time(s) at most")
        return [
            EmitLifecycle(
                "run.contended",
                header.execution,
                header.lifecycle_seq,
                now,
                reason=f"its record_version moved under its owner: {'; '.join(parts)}",
                about=f"contended-{version}",
                status=header.status,
            )
        ]


def _as_row(entry: Entry, about: str, not_before: int | None, tries: int) -> InboxRow:
    """The entry as an inbox row of its own partition: durable, to be applied later."""
    if entry.inbox_body is not None:
        source = f"engine/{_digest(entry.inbox_body)}/{about}"
        return InboxRow(entry.partition, source, "engine", entry.inbox_body, not_before, tries)
    if entry.received is None:  # the owner's own: made again meanwhile, it is the same
        assert not isinstance(entry.input, Beat)
        body = encode_event(entry.run_id, entry.input)
        return InboxRow(entry.partition, f"own/{_digest(body)}", "engine", body, not_before, tries)
    received = entry.received
    body = encode_received(received)
    offset = str(received.offset) if received.offset >= 0 else _digest(body)
    # The topic's id comes first: ids that the record lacks are made of it when it is read again.
    source = f"{entry.topic_id or received.topic}/{received.partition}/{offset}/{about}"
    return InboxRow(entry.partition, source, "event", body, not_before, tries)


def _digest(body: bytes) -> str:
    """Tells inputs without an offset apart: two of them may be put off in one millisecond, each by a batch of its own."""
    return hashlib.sha256(body).hexdigest()
