"""Kafka as a worker needs it: tasks of its queues, results, and stops."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

import msgspec

from ductor_stream.ports.log import Outgoing, Undeliverable


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
