"""The small ports through which the services see the outside: a store, a log, a clock, local workers.

The same coordinator runs against Postgres and Kafka, and against memory in tests. Values
here are plain and frozen; adapters in ``store`` and ``kafka`` implement the protocols.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Literal, Protocol

import msgspec

Inbound = Literal["run-events", "attempt-results", "wakeups"]
INBOUND: tuple[Inbound, ...] = ("run-events", "attempt-results", "wakeups")
"""The inbound topics, in the order in which ``eec_partition.offsets`` holds their positions."""

UNREAD = -1
"""An offset in ``eec_partition.offsets`` that says: nothing was ever read of this topic."""


# -- the log --------------------------------------------------------------------------------


class Received(msgspec.Struct, frozen=True):
    """One record of an inbound topic. ``topic`` is its short name."""

    topic: Inbound
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]]


class Outgoing(msgspec.Struct, frozen=True, array_like=True):
    """One record to produce. ``topic`` is the full name; ``partition`` None lets the key decide (murmur2)."""

    topic: str
    key: bytes
    value: bytes
    headers: list[tuple[str, bytes]] = []
    partition: int | None = None


class Undeliverable(msgspec.Struct, frozen=True):
    """A record that the broker did not take. ``permanent`` says that trying again cannot help (too large, illegal)."""

    record: Outgoing
    error: str
    permanent: bool


Acknowledged = Callable[[Sequence[Undeliverable]], None]
"""Called once per ``produce`` call, in the thread that polls the log, when the broker has answered for every record."""


class Ownership(Protocol):
    """What the log tells the coordinator about its membership. Called from within ``poll`` only."""

    def assigned(self, partitions: frozenset[int]) -> None:
        """The group gave us these partitions (all inbound topics of each). Nothing is read of them until ``seek``."""

    def revoked(self, partitions: frozenset[int]) -> None:
        """The group takes these partitions back; when this returns they are gone."""

    def lost(self, partitions: frozenset[int]) -> None:
        """These partitions are already somebody else's."""


class LostRange(Protocol):
    """Records of an inbound topic that are gone unread: ``from_offset`` up to, but without, ``to_offset``.

    ``to_offset`` not above ``from_offset``: the log was truncated or is another one, and how much was lost is not known.
    """

    @property
    def topic(self) -> Inbound:
        """Its short name."""

    @property
    def partition(self) -> int:
        """The partition."""

    @property
    def from_offset(self) -> int:
        """The first offset that should have been read next."""

    @property
    def to_offset(self) -> int:
        """Where reading has gone on."""


class EventLog(Protocol):
    """Kafka as the coordinator needs it: inbound topics in one group, and a producer.

    Delivery: at least once in both directions; ``produce`` is idempotent with acks=all.
    """

    def subscribe(self, ownership: Ownership) -> None:
        """Join the group. Raises TopicsNotReady, LogUnavailable."""

    def poll(self, timeout: float, limit: int) -> list[Received]:
        """Wait at most ``timeout`` seconds for the first record, then take what is there, at most ``limit``.

        Serves rebalances and delivery reports on the way. Raises LogUnavailable when the broker is away.
        """

    def seek(self, partition: int, offsets: Mapping[Inbound, int]) -> None:
        """Start reading an assigned partition at these offsets (``UNREAD``: at the earliest record)."""

    def pause(self, partitions: Iterable[int]) -> None:
        """Stop reading these partitions for now."""

    def resume(self, partitions: Iterable[int]) -> None:
        """Go on reading them."""

    def produce(self, records: Sequence[Outgoing], acknowledged: Acknowledged) -> None:
        """Hand records to the producer; ``acknowledged`` hears once of all of them. Does not block on the broker."""

    def flush(self, timeout: float) -> int:
        """Wait for outstanding acknowledgements; returns how many are still open."""

    def store_offsets(self, partition: int, offsets: Mapping[Inbound, int]) -> None:
        """Keep Kafka's own committed offsets up to date, for lag tools only (best effort)."""

    def end_offsets(self, partition: int) -> dict[Inbound, int]:
        """The stable end of each inbound topic's partition now (blocking, one request). Raises LogUnavailable."""

    def start_offsets(self, partition: int) -> dict[Inbound, int]:
        """The earliest offset still kept of each inbound topic's partition. Raises LogUnavailable."""

    def topic_ids(self) -> dict[str, str]:
        """Ids by full topic name of all topics of the namespace, task topics included. Raises LogUnavailable."""

    def partition_counts(self) -> dict[str, int]:
        """Partition counts by full topic name of all topics of the namespace (cached, refreshed on change)."""

    def reached_end(self, partition: int, topic: Inbound) -> int:
        """The position at which the consumer last hit the end of that log (EOF), ``UNREAD`` before that."""

    def gaps(self) -> Sequence[LostRange]:
        """Ranges found lost since the last call; reading has gone on behind them already (protocol 9)."""

    def look_again(self) -> None:
        """Ask for the topics anew, soon: one is needed of which nothing is known."""

    def healthy(self) -> bool:
        """Whether a broker has answered lately. May be called from another thread."""

    def close(self) -> None:
        """Leave the group and close the producer."""


# -- the store ------------------------------------------------------------------------------


class Namespace(msgspec.Struct, frozen=True):
    """The namespace's row: its key, its number of run partitions N, and the cluster it belongs to."""

    ns: int
    name: str
    partitions: int
    cluster_id: str


class InboxRow(msgspec.Struct, frozen=True):
    """A message for a run of a partition, durable until its owner has applied it. ``id`` is given by the store.

    ``kind`` is ``event`` (``body`` is the message as received: topic, key, value, headers in MessagePack),
    ``engine`` (``body`` is what one run has for another: run id and engine event in MessagePack),
    or ``produce`` (``body`` is an Outgoing to try again at ``not_before`` ms). ``source`` is the identity
    of the original record, so that nothing is applied twice; ``tries`` counts what was tried already.
    """

    partition: int
    source: str
    kind: str
    body: bytes
    not_before: int | None = None
    tries: int = 0
    id: int = 0


class OpenAttempt(msgspec.Struct, frozen=True):
    """An attempt that needs a row of its own: it was heard of (heartbeat), or runs by SyncMatch for longer.

    ``token`` names the owner in whose process it runs (SyncMatch), else None. Times are ms.
    """

    partition: int
    run_id: str
    execution: int
    node_id: str
    generation: int
    token: str | None
    heard_at: int
    beat_at: int
    worker: str = ""
    details: bytes | None = None


class Taken(msgspec.Struct, frozen=True):
    """A partition as its new owner found it, read after its epoch was raised (protocol 1)."""

    partition: int
    token: str
    epoch: int
    offsets: tuple[int, ...]
    topic_ids: dict[str, str]
    outbox: list[tuple[int, bytes]]
    """Unconfirmed outbox rows (sequence, MessagePack list of Outgoing), in order."""
    outbox_seq: int
    """The last sequence number used."""
    open_attempts: list[OpenAttempt]
    clean: bool
    """Whether the last owner said that it let go in good order."""
    now: int
    """Postgres's clock, ms."""


class BufferedMessage(msgspec.Struct, frozen=True):
    """A signal or command that came before its run. ``body`` is the MessagePack of its event."""

    id: str
    kind: str
    body: bytes
    expires_at: int


class LoadedRun(msgspec.Struct, frozen=True):
    """A run row with the records of its current execution, or only what is buffered for a run that does not exist."""

    run_id: str
    record_version: int
    """0 when there is no row."""
    header: bytes | None
    records: list[bytes]
    buffered: list[BufferedMessage]
    journal_from: int = 0
    """record_version with which the current execution's records begin."""


class PartitionAdvance(msgspec.Struct, frozen=True):
    """The compare-and-set of one partition in a commit (protocol 2), and its outbox row (protocol 10)."""

    partition: int
    token: str
    epoch: int
    previous: tuple[int, ...]
    next: tuple[int, ...]
    confirmed: int
    """Outbox rows up to this sequence are dropped."""
    outbox_seq: int = 0
    outbox: bytes | None = None
    topic_ids: dict[str, str] | None = None
    """Written where not None."""


class RunWrite(msgspec.Struct, frozen=True):
    """One run's new state: inserted when ``expected`` is 0, else updated where ``record_version = expected``."""

    run_id: str
    partition: int
    expected: int
    workflow: str
    version: str
    execution: int
    status: str
    header: bytes
    entry: bytes
    """The records of this commit: one transition row with record_version ``expected + 1``."""
    epoch: int
    journal_from: int
    wake_at: int | None
    """When the owner must look at the run even if nothing comes (ms)."""
    reason: str
    """One sentence for suspended or paused runs, else empty."""
    result: bytes | None
    error: bytes | None
    """JSON."""
    started_at: int
    closed_at: int | None
    now: int


class AttemptRow(msgspec.Struct, frozen=True):
    """One line about an attempt: ``dispatched``, ``finished`` or ``late``. Appended, never updated."""

    run_id: str
    execution: int
    node_id: str
    generation: int
    phase: str
    attempt: int
    step: str
    queue: str
    outcome: str
    error: bytes | None
    worker: str
    at: int


class MessageRow(msgspec.Struct, frozen=True):
    """The id of a signal or command or start that was applied (or buffered, then with body and expiry)."""

    run_id: str
    partition: int
    id: str
    kind: str
    name: str
    body: bytes | None = None
    expires_at: int | None = None


class Batch(msgspec.Struct):
    """All that one commit writes: everything lands, or nothing does."""

    partitions: list[PartitionAdvance] = []
    runs: list[RunWrite] = []
    attempts: list[AttemptRow] = []
    messages: list[MessageRow] = []
    released: list[tuple[str, str, str]] = []
    """(run id, kind, id) of buffered messages that were applied now: their bodies are cleared, their ids stay."""
    inbox: list[InboxRow] = []
    """To insert; a source that is there already is left alone."""
    consumed: list[tuple[int, int]] = []
    """(partition, id) of inbox rows applied now: deleted, and each must still be there."""
    open_attempts: list[OpenAttempt] = []
    """Inserted or updated."""
    closed_attempts: list[tuple[int, str, int, str]] = []
    """(partition, run id, execution, node id) to delete from eec_open_attempt."""
    counters: dict[tuple[int, str, str], int] = {}
    """(partition, workflow, status) -> change of the count."""
    payloads: list[tuple[str, bytes]] = []
    """(id, bytes) of what is too large for its record."""


class RunStore(Protocol):
    """Postgres as the coordinator needs it. One connection, used by one thread."""

    def namespace(self, name: str, cluster_id: str, partitions: int) -> Namespace:
        """Find or create the namespace's row. Raises TopicsNotReady when the cluster or N is another one."""

    def take(self, partition: int, token: str) -> Taken:
        """Raise the epoch under a new token, then read what is there in a new statement (protocol 1, 6)."""

    def release(self, partition: int, token: str, epoch: int) -> None:
        """Say that the partition was let go in good order (nothing if it is no longer ours)."""

    def load(self, run_ids: Sequence[str], whole: Collection[str] = ()) -> dict[str, LoadedRun]:
        """Runs with their records, and buffered messages; every id asked for is in the answer.

        Closed runs come without their records, unless they are in ``whole``.
        """

    def lock(self, run_ids: Sequence[str]) -> None:
        """For the last try of a conflict: hold the row locks of these runs until the next commit (protocol 18)."""

    def known_messages(self, keys: Sequence[tuple[str, str, str]]) -> set[tuple[str, str, str]]:
        """Which of these (run id, kind, id) were applied or buffered already."""

    def commit(self, batch: Batch) -> int:
        """Write the batch in one transaction; returns Postgres's clock in ms at the commit.

        Raises OwnershipLost, RecordVersionConflict, PoisonedRun, StoreUnavailable (nothing landed for sure),
        CommitOutcomeUnknown (it may have landed).
        """

    def due_runs(self, partition: int, until: int, limit: int, after: str) -> list[tuple[str, int]]:
        """Open runs with ``wake_at`` up to ``until`` (ms), by run id beyond ``after``: (run id, wake_at)."""

    def open_runs(self, partition: int, limit: int, after: str) -> list[str]:
        """Ids of open runs, by run id beyond ``after``."""

    def suspended_runs(self, partition: int, limit: int, after: str) -> list[tuple[str, str, str]]:
        """Suspended runs: (run id, workflow, version)."""

    def inbox(self, partition: int, limit: int, now: int) -> list[InboxRow]:
        """Rows of the inbox that may be applied now, oldest first."""

    def expired_messages(self, partition: int, now: int, limit: int) -> list[tuple[str, BufferedMessage]]:
        """Buffered messages whose time to live has passed: (run id, message)."""

    def declare(self, definitions: Sequence[tuple[str, str, str]]) -> None:
        """Record (workflow, version, digest) that this process serves."""

    def ping(self) -> int:
        """Postgres's clock in ms. Raises StoreUnavailable."""

    def reconnect(self) -> None:
        """Drop the connection and open another. Raises StoreUnavailable."""

    def close(self) -> None:
        """Close the connection."""


# -- local workers (SyncMatch) --------------------------------------------------------------


class LocalWorkers(Protocol):
    """Workers in the coordinator's own process. ``reserve`` is called before the commit, ``run`` after it."""

    def reserve(self, queue: str, step: str) -> bool:
        """Keep one slot for an attempt of that step; False when none is free or the step is not known here."""

    def cancel_reservation(self, queue: str) -> None:
        """Give a reserved slot back (the commit failed)."""

    def run(self, task: bytes, key: bytes, headers: Sequence[tuple[str, bytes]]) -> None:
        """Execute a task (its JSON form, as it would stand on the topic) in a reserved slot."""

    def results(self, timeout: float) -> list[tuple[bytes, bytes]]:
        """Finished attempts and heartbeats: (key, JSON value as it would stand on attempt-results).

        Waits at most ``timeout`` seconds for the first one.
        """

    def busy(self) -> int:
        """How many attempts run here now."""

    def divert(self, partition_keys: Iterable[bytes]) -> None:
        """Results of these runs' attempts go by the topic from now on (their partition was given away)."""


class Clock(Protocol):
    """Postgres's time, carried on by the monotonic clock between commits (protocol 20)."""

    def now(self) -> int:
        """Milliseconds since 1970 UTC."""

    def observe(self, store_now: int) -> None:
        """A sample of the store's clock, taken just now."""

    def monotonic(self) -> float:
        """Seconds of a clock that never goes back."""

    def sleep(self, seconds: float) -> None:
        """Block for that long (virtual time in tests)."""



# -- the worker's side of the log -----------------------------------------------------------


class TaskRecord(msgspec.Struct, frozen=True):
    """One record of a task topic, or of ``attempt-control``."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]] = ()


class TaskPosition(msgspec.Struct, frozen=True):
    """Where a queue's group stands in one partition: the committed offset (None: nothing yet) and its metadata."""

    offset: int | None
    metadata: str = ""


class TaskOwnership(Protocol):
    """What a queue's source tells about its membership. Called from within ``poll`` and ``close`` only."""

    def assigned(self, positions: Mapping[int, TaskPosition]) -> None:
        """The group gave us these partitions; reading begins at the committed offset, or at the earliest record."""

    def revoked(self, partitions: frozenset[int]) -> None:
        """The group takes these partitions back: commit now, when this returns they are gone."""

    def lost(self, partitions: frozenset[int]) -> None:
        """These partitions are already somebody else's: nothing of them can be committed any more."""

    def uncommitted(self, partitions: frozenset[int]) -> None:
        """A commit that was not waited for has failed; it should be tried again."""


class TaskSource(Protocol):
    """One queue's tasks, read in the group of its workers. Used by one thread, ``problem`` by any."""

    def subscribe(self, ownership: TaskOwnership) -> None:
        """Join the group. A topic that does not exist yet is waited for, and ``problem`` says so."""

    def poll(self, timeout: float, limit: int) -> list[TaskRecord]:
        """Wait at most ``timeout`` seconds for the first record, then take what is there, at most ``limit``.

        Serves rebalances on the way, also with ``limit`` 0, which takes nothing: pause the partitions first.
        """

    def pause(self, partitions: Iterable[int]) -> None:
        """Stop reading these partitions for now."""

    def resume(self, partitions: Iterable[int]) -> None:
        """Go on reading them."""

    def commit(self, positions: Mapping[int, TaskPosition], *, wait: bool) -> bool:
        """Commit; without ``wait`` a failure is told to ``uncommitted`` later. False when it is known to have failed."""

    def problem(self) -> str:
        """A sentence about what keeps this queue from being read, else empty."""

    def close(self) -> None:
        """Leave the group (``revoked`` hears of what was held)."""


Delivered = Callable[[Undeliverable | None], None]
"""Hears once what became of a record, from any thread; None says that the broker has it."""


class TaskLog(Protocol):
    """Kafka as a worker needs it. Everything but ``stops`` may be used from any thread.

    Delivery: tasks at least once; ``produce`` is idempotent with acks=all and keeps the order of each key.
    """

    def source(self, queue: str) -> TaskSource:
        """The tasks of a queue. Raises InvalidConfig."""

    def produce(self, record: Outgoing, delivered: Delivered) -> None:
        """Hand a record to the producer. Never blocks, never raises; ``delivered`` may be called before it returns."""

    def stops(self, timeout: float) -> list[TaskRecord]:
        """Records of ``attempt-control`` that came after this began to read; waits at most ``timeout`` seconds."""

    def problem(self) -> str:
        """A sentence when the broker cannot be reached, else empty."""

    def flush(self, timeout: float) -> int:
        """Wait for outstanding acknowledgements; returns how many are still open."""

    def close(self) -> None:
        """Close the producer and what else is open; sources are closed by their own threads before."""
