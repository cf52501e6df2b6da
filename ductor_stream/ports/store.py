"""Postgres as the coordinator needs it: partitions, runs, messages, and one transaction per batch."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

import msgspec


class Namespace(msgspec.Struct, frozen=True, gc=False):
    """The namespace's row: its key, its number of run partitions N, and the cluster it belongs to."""

    ns: int
    name: str
    partitions: int
    cluster_id: str


class InboxRow(msgspec.Struct, frozen=True, gc=False):
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


class OpenAttempt(msgspec.Struct, frozen=True, gc=False):
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


class Taken(msgspec.Struct, frozen=True, gc=False):
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
    last_token: str
    """The last owner's token."""
    suspect: str | None
    """The run that the last owner, being careful, was about to tick."""
    deaths: int
    """How many owners before it died over that run, one after the other."""
    now: int
    """Postgres's clock, ms."""


class BufferedMessage(msgspec.Struct, frozen=True, gc=False):
    """A signal or command that came before its run. ``body`` is the MessagePack of its event."""

    id: str
    kind: str
    body: bytes
    expires_at: int


class LoadedRun(msgspec.Struct, frozen=True, gc=False):
    """A run row with the records of its current execution, or only what is buffered for a run that does not exist."""

    run_id: str
    record_version: int
    """0 when there is no row."""
    header: bytes | None
    records: list[bytes]
    buffered: list[BufferedMessage]
    journal_from: int = 0
    """record_version with which the current execution's records begin."""


class PartitionAdvance(msgspec.Struct, frozen=True, gc=False):
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


class RunWrite(msgspec.Struct, frozen=True, gc=False):
    """One run's new state: inserted when ``expected`` is 0, else updated where ``record_version = expected``."""

    run_id: str
    partition: int
    expected: int
    workflow: str
    version: str
    execution: int
    status: str
    header: bytes | None
    """None: as it is in the row, but for ``seq`` and ``now``, which the journal tells. No other column changes then
    but ``wake_at``, ``now`` and the version."""
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


class AttemptRow(msgspec.Struct, frozen=True, gc=False):
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


class MessageRow(msgspec.Struct, frozen=True, gc=False):
    """The id of a signal or command or start that was applied (or buffered, then with body and expiry).

    ``name`` is the signal's name, the command's type, or the workflow that was started: empty where the start was refused.
    """

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
    deferred: list[tuple[int, int, int | None, int]] = []
    """(partition, id, not_before, tries) of inbox rows that wait on, in their places; each must still be there."""
    open_attempts: list[OpenAttempt] = []
    """Inserted or updated."""
    closed_attempts: list[tuple[int, str, int, str]] = []
    """(partition, run id, execution, node id) to delete from eec_open_attempt."""
    counters: dict[tuple[int, str, str], int] = {}
    """(partition, workflow, status) -> change of the count."""
    payloads: list[tuple[str, bytes]] = []
    """(id, bytes) of what is too large for its record."""


class Folded(msgspec.Struct, frozen=True):
    """What a run's oldest transitions were, of record_versions 1 to ``upto`` (0: nothing is folded). Times are ms.

    ``execution`` is that of the last one; ``counts`` says how many events of each kind there were, by their tag.
    """

    upto: int = 0
    execution: int = 0
    first_at: int = 0
    last_at: int = 0
    counts: dict[str, int] = {}


class Foldable(msgspec.Struct, frozen=True):
    """What is folded of a run, and what may be next, oldest first: (record_version, execution, at (ms), records)."""

    folded: Folded
    transitions: list[tuple[int, int, int, bytes]]


UNBOUNDED = 2**62
"""More bytes than there are."""


class RunStore(Protocol):
    """Postgres as the coordinator needs it. One connection, used by one thread."""

    def namespace(self, name: str, cluster_id: str, partitions: int) -> Namespace:
        """Find or create the namespace's row. Raises TopicsNotReady when the cluster or N is another one."""

    def take(self, partition: int, token: str) -> Taken:
        """Raise the epoch under a new token, then read what is there in a new statement (protocol 1, 6)."""

    def release(self, partition: int, token: str, epoch: int) -> None:
        """Say that the partition was let go in good order (nothing if it is no longer ours)."""

    def note(self, partition: int, token: str, epoch: int, run_id: str | None, deaths: int) -> None:
        """Write down which run is about to be tried, or None (nothing if the partition is no longer ours)."""

    def load(
        self, run_ids: Sequence[str], whole: Collection[str] = (), at_most: int = UNBOUNDED
    ) -> dict[str, LoadedRun]:
        """The first of these runs, with their records and buffered messages: as many as ``at_most`` bytes of those hold.

        One is there at least; a run that does not exist takes nothing. Closed runs come without their records, unless
        they are in ``whole``.
        """

    def lock(self, run_ids: Sequence[str]) -> None:
        """For the last try of a conflict: hold the row locks of these runs until the next commit (protocol 18)."""

    def unlocked(self, run_ids: Sequence[str]) -> set[str]:
        """Those of these runs whose rows nobody else holds at this moment; waits for none."""

    def known_messages(self, keys: Sequence[tuple[str, str, str]]) -> dict[tuple[str, str, str], str]:
        """Which of these (run id, kind, id) were applied or buffered already, and their names."""

    def commit(self, batch: Batch) -> int:
        """Write the batch in one transaction; returns Postgres's clock in ms at the commit.

        Raises OwnershipLost, RecordVersionConflict, PoisonedRun, StoreUnavailable (nothing landed for sure),
        CommitOutcomeUnknown (it may have landed).
        """

    def due_runs(self, partition: int, until: int, limit: int, after: str) -> list[tuple[str, int]]:
        """Open runs with ``wake_at`` up to ``until`` (ms), by run id beyond ``after``: (run id, wake_at)."""

    def open_runs(self, partition: int, limit: int, after: str, size: int) -> list[str]:
        """Ids of open runs, by run id beyond ``after``: those that can be loaded from ``size`` bytes of records, but
        one at least. None are left when none are returned.
        """

    def suspended_runs(self, partition: int, limit: int, after: str) -> list[tuple[str, str, str]]:
        """Suspended runs: (run id, workflow, version)."""

    def inbox(self, partition: int, limit: int, now: int) -> list[InboxRow]:
        """Rows of the inbox that may be applied now, oldest first."""

    def put_off(self, partition: int, limit: int, after: int) -> list[InboxRow]:
        """Rows that were put off before, due or not, by id beyond ``after``: those with ``not_before`` or ``tries``, but
        nothing that is to be produced.
        """

    def expired_messages(self, partition: int, now: int, limit: int) -> list[tuple[str, BufferedMessage]]:
        """Buffered messages whose time to live has passed: (run id, message)."""

    def foldable(self, run_id: str, below: int, limit: int, size: int) -> Foldable:
        """What is folded of a run, and the transitions after that with a record_version under ``below``.

        At most ``limit`` of them, and those that begin within ``size`` bytes.
        """

    def drop_attempts(self, fence: tuple[int, str, int], run_id: str, execution: int, limit: int) -> int:
        """Delete attempts of executions before ``execution``, at most ``limit`` rows; returns how many went.

        ``fence`` is (partition, token, epoch): nothing goes when the partition is no longer ours.
        """

    def fold(self, fence: tuple[int, str, int], run_id: str, before: int, folded: Folded) -> bool:
        """Put ``folded`` in the place of the transitions after ``before``, all of it or nothing.

        ``fence`` is (partition, token, epoch). False when nothing landed: the partition is no longer ours, somebody else
        was there, or the run would need what is to be folded.
        """

    def declare(self, definitions: Sequence[tuple[str, str, str]]) -> None:
        """Record (workflow, version, digest) that this process serves."""

    def ping(self) -> int:
        """Postgres's clock in ms. Raises StoreUnavailable."""

    def reconnect(self) -> None:
        """Drop the connection and open another. Raises StoreUnavailable."""

    def close(self) -> None:
        """Close the connection."""
