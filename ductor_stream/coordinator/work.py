"""The values that pass between the steps of one batch."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from ductor_stream.coordinator.cache import Cached
from ductor_stream.engine.actions import TellParent
from ductor_stream.engine.events import AnyEvent, ChildFinished, CommandReceived, Failure, RunStarted
from ductor_stream.engine.tick import Tick
from ductor_stream.errors import DataError
from ductor_stream.ports import InboxRow, MessageRow, OpenAttempt, Outgoing, Received
from ductor_stream.protocol.inbound import Beat


class Entry(msgspec.Struct):
    """One input for one run. ``received`` is the record it came as, ``inbox_body`` the row of another run's message
    (both None for what the owner itself noticed).

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

    @property
    def forks(self) -> bool:
        """Whether the run's whole history is needed to apply it."""
        return isinstance(self.input, CommandReceived) and self.input.kind in ("retry", "reset")

    @property
    def durable(self) -> bool:
        """Whether it came from outside: then it must be applied, or wait in a row, before its source is passed."""
        return self.received is not None or self.inbox_body is not None


class Work(msgspec.Struct):
    """What one turn has taken in: entries in order, and what the commit must say of their sources."""

    entries: list[Entry] = []
    positions: dict[int, list[int]] = {}
    """Partition -> next offsets of the inbound topics, for partitions that were read of."""
    inbox: list[InboxRow] = []
    consumed: list[tuple[int, int]] = []
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
            outgoing={partition: list(records) for partition, records in self.outgoing.items()},
            payloads=list(self.payloads),
            released=list(self.released),
            orphaned=list(self.orphaned),
        )

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
    whether they come from this very process (SyncMatch).
    """

    run_id: str
    partition: int
    entries: list[Entry]
    before: Cached
    tick: Tick | None = None
    messages: list[MessageRow] = []
    released: list[tuple[str, str, str]] = []
    beats: list[tuple[Beat, bool]] = []
