"""Kafka as the coordinator needs it: inbound topics in one group, and a producer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal, Protocol

import msgspec

Inbound = Literal["run-events", "attempt-results", "wakeups"]
INBOUND: tuple[Inbound, ...] = ("run-events", "attempt-results", "wakeups")
"""The inbound topics, in the order in which ``eec_partition.offsets`` holds their positions."""

UNREAD = -1
"""An offset in ``eec_partition.offsets`` that says: nothing was ever read of this topic."""


class Received(msgspec.Struct, frozen=True, gc=False):
    """One record of an inbound topic. ``topic`` is its short name."""

    topic: Inbound
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]]


class Outgoing(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One record to produce. ``topic`` is the full name; ``partition`` None lets the key decide (murmur2)."""

    topic: str
    key: bytes
    value: bytes
    headers: list[tuple[str, bytes]] = []
    partition: int | None = None


class Undeliverable(msgspec.Struct, frozen=True, gc=False):
    """A record that the broker did not take. ``permanent`` says that trying again cannot help (too large, illegal)."""

    record: Outgoing
    error: str
    permanent: bool


Acknowledged = Callable[[Sequence[Undeliverable]], None]
"""Called once per ``produce`` call, in the thread that polls the log, when the broker has answered for every record."""


TaskPlace = tuple[str, int]
"""Full name and partition of a task topic."""


class TaskStand(msgspec.Struct, frozen=True, gc=False):
    """One partition of a task topic: the earliest offset kept, its end, and what its workers' group has committed.

    ``committed`` is ``UNREAD`` where nothing is known of it.
    """

    start: int
    end: int
    committed: int

    @property
    def passed(self) -> int:
        """No record before this offset will ever be given to a worker again: it was done, or is gone."""
        return max(self.start, self.committed)


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

    def still_member(self) -> bool:
        """Whether the group knows us as a member now, with what it gave us: its broker is asked, for two seconds at most.

        False where it does not answer: a process that has slept may have been expelled long ago and not know it.
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

    def written_ends(self, partitions: Iterable[int]) -> dict[tuple[Inbound, int], int]:
        """The end of all that is written, by topic and partition: records of open transactions too (one request).

        Behind the stable end it stands where such a transaction holds records back (protocol 26). Raises LogUnavailable.
        """

    def start_offsets(self, partition: int) -> dict[Inbound, int]:
        """The earliest offset still kept of each inbound topic's partition. Raises LogUnavailable."""

    def topic_ids(self) -> dict[str, str]:
        """Ids by full topic name of all topics of the namespace, task topics included. Raises LogUnavailable."""

    def partition_counts(self) -> dict[str, int]:
        """Partition counts by full topic name of all topics of the namespace (cached, refreshed on change)."""

    def hidden_topics(self) -> frozenset[str]:
        """Full names of topics that may not be described by us, as of ``partition_counts``: they may well be there."""

    def reached_end(self, partition: int, topic: Inbound) -> int:
        """The position at which the consumer last hit the end of that log (EOF), ``UNREAD`` before that."""

    def gaps(self) -> Sequence[LostRange]:
        """Ranges found lost since the last call; reading has gone on behind them already (protocol 9)."""

    def ask_tasks(self) -> Callable[[], Mapping[TaskPlace, TaskStand] | None]:
        """Ask where the task topics stand, without waiting; what is returned gives the answer, None until it is there.

        Places of which nothing can be said are left out: all of them while Kafka is away.
        """

    def look_again(self) -> None:
        """Ask for the topics anew, soon: one is needed of which nothing is known."""

    def healthy(self) -> bool:
        """Whether a broker has answered lately. May be called from another thread."""

    def close(self) -> None:
        """Leave the group and close the producer."""
