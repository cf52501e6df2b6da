"""One checker per rule, each with the rule's number in its name. They see commits, records and the end, never a fault."""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterable, Sequence

import msgspec

from ductor_stream.coordinator.cache import cached_from
from ductor_stream.engine.events import (
    AnyEvent,
    AttemptFinished,
    AttemptTimedOut,
    ChildFinished,
    CommandReceived,
    RunStarted,
    RunTimedOut,
    SignalReceived,
    TimerFired,
)
from ductor_stream.engine.state import Record, RunState, decode_records
from ductor_stream.ports import Batch, LoadedRun, Outgoing, RunWrite
from ductor_stream.protocol.inbox import decode_outgoing
from ductor_stream.protocol.lifecycle import LifecycleEvent
from ductor_stream.protocol.topics import Topics
from ductor_stream.testing.simulation.memory_broker import Kept, Topic, partition_for
from ductor_stream.testing.simulation.memory_database import Database
from ductor_stream.testing.simulation.workers import task_in, task_of
from ductor_stream.testing.simulation.world import Violation

Told = tuple[str, bytes | None, bytes | None]
_outbox = msgspec.msgpack.Decoder(list[Outgoing])
records_of = functools.lru_cache(64)(decode_records)
"""Each checker of a commit looks at them."""


class Checker:
    """Looks at what happens; raises Violation. Each hook is for the checkers that need it."""

    rule = "R0"

    def broken(self, told: str) -> Violation:
        """What to raise."""
        return Violation(self.rule, told)

    def hears(self, hook: str) -> bool:
        """Whether it does anything in this hook: others need not call it."""
        return getattr(type(self), hook) is not getattr(Checker, hook)

    def committing(self, database: Database, batch: Batch, txid: int) -> None:
        """A commit is about to land."""

    def committed(self, database: Database, batch: Batch, txid: int) -> None:
        """A commit has landed."""

    def took(self, partition: int, token: str, epoch: int) -> None:
        """A partition was taken."""

    def handed(self, records: Sequence[Outgoing]) -> None:
        """A coordinator hands records to its producer."""

    def landed(self, topic: Topic, partition: int, record: Kept) -> None:
        """A record is in a topic."""

    def heard(self, event: LifecycleEvent) -> None:
        """A lifecycle event is in its topic."""

    def lost(self, batch: Batch, run_ids: Collection[str]) -> None:
        """A commit did not land, since these runs have lost their version check."""

    def finish(self, database: Database) -> None:
        """All is at rest."""


class R1OneWriter(Checker):
    """Record versions are dense, each from one commit of one owner, and owners follow each other."""

    rule = "R1"

    def __init__(self, partitions: int) -> None:
        self._partitions = partitions
        self._last: dict[str, tuple[int, int, int]] = {}

    def committing(self, database: Database, batch: Batch, txid: int) -> None:
        for run in batch.runs:
            version, epoch, last = self._last.get(run.run_id, (0, 0, 0))
            if run.expected != version or txid <= last:
                raise self.broken(
                    f"{run.run_id}: version {run.expected + 1} after {version}, commit {txid} after {last}"
                )
            if run.epoch < epoch or run.epoch != database.partitions[run.partition].epoch:
                raise self.broken(f"{run.run_id}: written under epoch {run.epoch} after {epoch}")
            if run.partition != partition_for(run.run_id.encode(), self._partitions):
                raise self.broken(f"{run.run_id}: written by the owner of {run.partition}, which is not its home")
            self._last[run.run_id] = (version + 1, run.epoch, txid)


class R3Fence(Checker):
    """Only the last owner commits, and only from where the last commit left the offsets."""

    rule = "R3"

    def __init__(self) -> None:
        self._owners: dict[int, tuple[str, int]] = {}
        self._offsets: dict[int, tuple[int, ...]] = {}

    def took(self, partition: int, token: str, epoch: int) -> None:
        if epoch <= self._owners.get(partition, ("", 0))[1]:
            raise self.broken(f"partition {partition} was taken with epoch {epoch} again")
        self._owners[partition] = (token, epoch)

    def committing(self, database: Database, batch: Batch, txid: int) -> None:
        for advance in batch.partitions:
            place = advance.partition
            if self._owners.get(place) != (advance.token, advance.epoch):
                raise self.broken(f"partition {place}: a zombie of epoch {advance.epoch} commits")
            if self._offsets.setdefault(place, advance.previous) != advance.previous:
                raise self.broken(f"partition {place}: offsets {advance.previous} were not the last ones")
            self._offsets[place] = tuple(advance.next)


class R4CommitBeforeDispatch(Checker):
    """Nothing is produced that no commit has promised."""

    rule = "R4"

    def __init__(self, topics: Topics, database: Database) -> None:
        self._topics, self._database = topics, database
        self._promised: set[Told] = set()

    def committed(self, database: Database, batch: Batch, txid: int) -> None:
        for record in promises(batch):
            self._promised.add(told(record))

    def handed(self, records: Sequence[Outgoing]) -> None:
        for record in records:
            if told(record) in self._promised or record.topic == self._topics.attempt_results:
                continue
            key = _fence_of(record) if self._topics.queue_of(record.topic) is not None else None
            if key is None or (*key, "dispatched") not in self._database.attempts:
                raise self.broken(f"produced to {record.topic} before its commit: {record.value[:200]!r}")


class R5NothingSwallowed(Checker):
    """What a commit has promised is in its topic, or still in a row, or no longer wanted. All input is applied."""

    rule = "R5"

    def __init__(self, topics: Topics) -> None:
        self._topics = topics
        self._landed: set[Told] = set()
        self._delayed: set[Told] = set()
        self._taken: set[Told] = set()
        self._dropped: dict[int, list[tuple[int, bytes]]] = {}

    def landed(self, topic: Topic, partition: int, record: Kept) -> None:
        self._landed.add((topic.name, record.key, record.value))

    def committed(self, database: Database, batch: Batch, txid: int) -> None:
        self._delayed -= self._taken
        self._delayed.update(told(decode_outgoing(row.body)) for row in batch.inbox if row.kind == "produce")
        for advance in batch.partitions:
            for seq, body in self._dropped.pop(advance.partition, []):
                for record in _outbox.decode(body):
                    self._account(database, seq, record)

    def committing(self, database: Database, batch: Batch, txid: int) -> None:
        rows = [database.inbox[partition][id] for partition, id in batch.consumed]
        self._taken = {told(decode_outgoing(row.body)) for row in rows if row.kind == "produce"}
        self._dropped = {
            advance.partition: [
                row for row in database.outbox.get(advance.partition, {}).items() if row[0] <= advance.confirmed
            ]
            for advance in batch.partitions
        }

    def _account(self, database: Database, seq: int, record: Outgoing) -> None:
        if told(record) in self._landed or told(record) in self._delayed:
            return
        if any(told(other) == told(record) for other in _owed(database)):
            return
        if self._topics.queue_of(record.topic) is not None and not self._wanted(database, record):
            return
        raise self.broken(f"outbox row {seq} was dropped, {record.topic} never got {record.value[:200]!r}")

    def _wanted(self, database: Database, record: Outgoing) -> bool:
        run_id, execution, node_id, generation = _fence_of(record)
        opened = database.open_attempts.values()
        if (run_id, execution, node_id, generation) in (
            (a.run_id, a.execution, a.node_id, a.generation) for a in opened
        ):
            return False
        state = state_of(database, run_id)
        if state is None or state.closed or state.header.execution != execution:
            return False
        node = state.nodes.get(node_id)
        return node is not None and node.generation == generation and node.status == "dispatched"


class R6AppliedOnce(Checker):
    """Each input stands in the history of its run once."""

    rule = "R6"

    def __init__(self) -> None:
        self._applied: set[tuple[object, ...]] = set()

    def committing(self, database: Database, batch: Batch, txid: int) -> None:
        for run in batch.runs:
            for record in records_of(run.entry):
                source = source_of(record.event)
                if source is None:
                    continue
                if (run.run_id, *source) in self._applied:
                    raise self.broken(f"{run.run_id}: {source} was applied twice")
                self._applied.add((run.run_id, *source))


class R7IdempotencyKey(Checker):
    """One node, one key; another node, another key."""

    rule = "R7"

    def __init__(self, topics: Topics) -> None:
        self._topics = topics
        self._keys: dict[tuple[str, int, str], str] = {}
        self._nodes: dict[str, tuple[str, str]] = {}

    def landed(self, topic: Topic, partition: int, record: Kept) -> None:
        if self._topics.queue_of(topic.name) is None:
            return
        task = task_of(record)
        if task is None:
            return
        node, key = (task["run_id"], task["execution"], task["node_id"]), task["idempotency_key"]
        if self._keys.setdefault(node, key) != key:
            raise self.broken(f"{node} has the keys {self._keys[node]} and {key}")
        if self._nodes.setdefault(key, (node[0], node[2])) != (node[0], node[2]):
            raise self.broken(f"{key} is the key of {self._nodes[key]} and of {node}")


class R8StaleResults(Checker):
    """A result counts only for the attempt that is open, and it is that attempt's own."""

    rule = "R8"

    def committing(self, database: Database, batch: Batch, txid: int) -> None:
        for run in batch.runs:
            for record in records_of(run.entry):
                event = record.event
                if isinstance(event, AttemptFinished):
                    self._check(database, run.run_id, record, event)
                elif isinstance(event, ChildFinished) and event.execution != record.execution:
                    raise self.broken(f"{run.run_id}: execution {record.execution} heard of {event.execution}'s child")

    def _check(self, database: Database, run_id: str, record: Record, event: AttemptFinished) -> None:
        fence = (run_id, record.execution, event.node_id, event.generation)
        said = msgspec.json.decode(event.output) if event.output is not None else None
        if event.failure is not None and event.failure.code in ("user", "step_unknown"):
            said = event.failure.message
        if said is not None and said != "|".join(map(str, fence)):
            raise self.broken(f"{fence} was given the result of {said}")
        if (*fence, "dispatched") not in database.attempts:
            raise self.broken(f"{fence} has a result and was never dispatched")
        if (*fence, "finished") in database.attempts:
            raise self.broken(f"{fence} had ended before")
        if (*fence[:3], event.generation + 1, "dispatched") in database.attempts:
            raise self.broken(f"{fence} was superseded")


class RowsAgree(Checker):
    """What stands in several tables is the same: counters, open attempts, buffered messages, wake-ups."""

    rule = "rows"

    def finish(self, database: Database) -> None:
        counts: dict[tuple[int, str, str], int] = {}
        for run in database.runs.values():
            key = (run.partition, run.workflow, run.status)
            counts[key] = counts.get(key, 0) + 1
            if run.closed_at is not None and run.wake_at is not None:
                raise self.broken(f"{run.run_id} is closed and would be woken")
            if (run.result is None) != (run.status != "completed"):
                raise self.broken(f"{run.run_id} is {run.status} with result {run.result!r}")
        said = {key: count for key, count in database.counters.items() if count}
        if said != counts:
            raise self.broken(f"counters say {said}, there are {counts}")
        if database.open_attempts:
            raise self.broken(f"open attempts are left: {list(database.open_attempts)[:3]}")
        for row in database.messages.values():
            if row.body is not None and row.run_id in database.runs:
                raise self.broken(f"message {row.id} still waits for {row.run_id}, which is there")


def promises(batch: Batch) -> Iterable[Outgoing]:
    """The records that a commit says will be produced."""
    for advance in batch.partitions:
        if advance.outbox is not None:
            yield from _outbox.decode(advance.outbox)
    for row in batch.inbox:
        if row.kind == "produce":
            yield decode_outgoing(row.body)


def _owed(database: Database) -> Iterable[Outgoing]:
    for rows in database.outbox.values():
        for body in rows.values():
            yield from _outbox.decode(body)


def told(record: Outgoing) -> Told:
    """What tells a record from others."""
    return (record.topic, record.key, record.value)


def state_of(database: Database, run_id: str) -> RunState | None:
    """A run's state, rebuilt from its records. It is not to be changed."""
    run = database.runs.get(run_id)
    if run is None:
        return None
    known = database.rebuilt.get(run_id)
    if known is None or known[0] is not run:
        known = database.rebuilt[run_id] = (run, _rebuilt(database, run))
    return known[1]


def _rebuilt(database: Database, run: RunWrite) -> RunState | None:
    run_id = run.run_id
    records = [t.records for t in database.transitions[run_id] if t.record_version >= run.journal_from]
    closed = run.closed_at is not None
    return cached_from(LoadedRun(run_id, run.expected + 1, run.header, [] if closed else records, [])).state


def _fence_of(record: Outgoing) -> tuple[str, int, str, int]:
    task = task_in(record.value)
    assert task is not None
    return (task["run_id"], task["execution"], task["node_id"], task["generation"])


def source_of(event: AnyEvent) -> tuple[object, ...] | None:
    """What tells an input from all others of its run; None for what is none."""
    match event:
        case SignalReceived(id):
            return ("signal", id)
        case CommandReceived(_, id):
            return ("command", id)
        case RunStarted(start_id=id):
            return ("start", id)
        case AttemptFinished(execution, node_id, generation) | AttemptTimedOut(execution, node_id, generation):
            return ("attempt", execution, node_id, generation)
        case TimerFired(execution, node_id, generation):
            return ("timer", execution, node_id, generation)
        case ChildFinished(execution, node_id):
            return ("child", execution, node_id)
        case RunTimedOut(execution):
            return ("run_overdue", execution)
        case _:
            return None
