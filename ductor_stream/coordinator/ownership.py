"""Which partitions are ours, under which token and epoch. Taking one never happens in a rebalance callback (protocol 6)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

import msgspec

from ductor_stream.errors import OwnershipLost, StoreUnavailable, TransientError
from ductor_stream.ports import INBOUND, Clock, EventLog, RunStore, Taken
from ductor_stream.telemetry.logs import get_logger
from ductor_stream.telemetry.metrics import Metrics

_log = get_logger(__name__)

RETRY_FIRST_S = 0.2
RETRY_MAXIMUM_S = 5.0
"""Back-off of taking a partition anew: a fence or an outage clears within seconds, or a person must look."""


class Owned(msgspec.Struct):
    """A partition that this process may commit to, as of its last commit.

    ``committed`` are the offsets as they stand in Postgres, ``offsets`` those that the next commit starts from.
    """

    partition: int
    token: str
    epoch: int
    committed: tuple[int, ...]
    offsets: list[int]
    outbox_seq: int
    confirmed: int
    topic_ids: dict[str, str]
    ids_changed: bool = False


class Owner(Protocol):
    """What the service does when partitions come and go."""

    def taken(self, owned: Owned, found: Taken, recreated: list[str]) -> None:
        """The partition is ours; ``recreated`` names topics that are not those that were read before (R5b)."""

    def releasing(self, partitions: frozenset[int]) -> None:
        """The partitions are still ours, for the last time."""

    def gone(self, partitions: frozenset[int]) -> None:
        """Forget everything about the partitions."""


class Ownership:
    """Implements ``ports.Ownership``. Partitions are wanted (assigned by the group), then owned (taken in Postgres)."""

    def __init__(
        self,
        ports: tuple[RunStore, EventLog, Clock],
        inbound: tuple[str, ...],
        metrics: Metrics,
        owner: Owner,
        new_token: Callable[[], str],
    ) -> None:
        self._store, self._log, self._clock = ports
        self._inbound, self._metrics = inbound, metrics
        self._owner = owner
        self._new_token = new_token
        self._wanted: dict[int, float] = {}
        self._failures: dict[int, int] = {}
        self._hasty: set[int] = set()
        """Taken anew at once, and nothing has landed since."""
        self._fenced: set[int] = set()
        """Wanted partitions that somebody else has taken, or may have: not ours before the group has said that they are."""
        self._tokens: dict[int, set[str]] = {}
        """Of partitions that were ours since they were assigned: the token of the last take, and of those that failed since."""
        self.owned: dict[int, Owned] = {}
        self.store_down = False

    # -- ports.Ownership, called from within the log's poll -----------------------------------

    def assigned(self, partitions: frozenset[int]) -> None:
        for partition in partitions:
            self._wanted.setdefault(partition, 0.0)

    def revoked(self, partitions: frozenset[int]) -> None:
        ours = frozenset(partitions & self.owned.keys())
        if ours:
            self._owner.releasing(ours)
        for partition in ours:
            owned = self.owned[partition]
            try:
                self._store.release(partition, owned.token, owned.epoch)
            except TransientError as error:
                _log.warning("partition not released in good order", partition=partition, error=str(error))
        self._forget(partitions)

    def lost(self, partitions: frozenset[int]) -> None:
        self._forget(partitions)

    def _forget(self, partitions: frozenset[int]) -> None:
        for partition in partitions:
            self._wanted.pop(partition, None)
            self._failures.pop(partition, None)
            self._hasty.discard(partition)
            self._fenced.discard(partition)
            self._tokens.pop(partition, None)
            self.owned.pop(partition, None)
        self._owner.gone(partitions)
        self._metrics.partitions_owned.set(len(self.owned))

    # -- called from the loop -----------------------------------------------------------------

    def retake(self, partitions: Iterable[int], *, slowly: bool = False, fenced: bool = False) -> None:
        """Let go in memory and take anew: after a rollback, an unknown outcome, or (``fenced``) when others have taken some.

        ``slowly`` is with back-off from the first time on, and ``fenced`` too; else it begins with the second time in a
        row: each take sends all that is unconfirmed once more. ``fenced`` only if the group still has us as a member
        (protocol 5), or an owner that was expelled and does not know it yet fights with the new ones over each partition.
        """
        dropped = frozenset(p for p in partitions if p in self.owned)
        if not dropped:
            return
        self._log.pause(dropped)
        for partition in dropped:
            self.owned.pop(partition)
            failures = self._failures.get(partition, 0)
            if fenced:
                self._fenced.add(partition)
            if wait := slowly or fenced or partition in self._hasty:
                self._failures[partition] = failures + 1
            self._hasty.add(partition)
            self._wanted[partition] = self._clock.monotonic() + (_delay(failures) if wait else 0.0)
        self._owner.gone(dropped)
        self._metrics.partitions_owned.set(len(self.owned))

    def settle(self) -> None:
        """Take what is wanted and due."""
        now = self._clock.monotonic()
        due = {p for p, at in self._wanted.items() if at <= now}
        if (doubtful := due & self._fenced) and not self._log.still_member():
            _log.warning("taken by others, and the group does not say that they are ours", partitions=sorted(doubtful))
            for partition in doubtful:
                self._not_taken(partition)
            due -= doubtful
        for partition in sorted(due):
            if partition in self._fenced - doubtful:
                continue  # a take of this turn has found that others were there: the group is asked first
            try:
                self._take(partition)
                self.store_down = False
            except (TransientError, OwnershipLost) as error:
                _log.warning("partition not taken", partition=partition, error=str(error))
                if isinstance(error, OwnershipLost):
                    self._fenced.add(partition)
                self._not_taken(partition)
                if isinstance(error, StoreUnavailable):
                    self.reconnect()
                return
            except Exception:
                self._not_taken(partition)
                raise

    def _not_taken(self, partition: int) -> None:
        """Half taken is not taken: forget what was begun, and try again after a while."""
        if self.owned.pop(partition, None) is not None:
            self._owner.gone(frozenset({partition}))
        failures = self._failures.get(partition, 0)
        self._failures[partition] = failures + 1
        # From now on, not from when the turn began: whoever did not answer may have kept us for longer than the delay.
        self._wanted[partition] = self._clock.monotonic() + _delay(failures)

    def settled(self, partitions: Iterable[int]) -> None:
        """A commit of these partitions has landed: fences are no longer expected."""
        for partition in partitions:
            self._failures.pop(partition, None)
            self._hasty.discard(partition)

    def next_due(self) -> float | None:
        """When ``settle`` has something to do (monotonic seconds)."""
        return min(self._wanted.values(), default=None)

    def waiting(self) -> list[int]:
        """Partitions assigned and not yet taken."""
        return sorted(self._wanted)

    def reconnect(self) -> None:
        """Open another connection to Postgres, and note whether that worked."""
        try:
            self._store.reconnect()
            self.store_down = False
        except StoreUnavailable as error:
            _log.warning("postgres away", error=str(error))
            self.store_down = True

    def _take(self, partition: int) -> None:
        ids = self._log.topic_ids()
        token, ours = self._new_token(), self._tokens.get(partition)
        if ours is not None:
            ours.add(token)
        found = self._store.take(partition, token)
        self._tokens[partition] = {token}
        self._clock.observe(found.now)
        owned, recreated = _owned(found, ids, self._inbound)
        self.owned[partition] = owned
        self._metrics.takeovers.inc()
        _log.info("partition taken", partition=partition, epoch=owned.epoch, redrive=len(found.outbox))
        self._owner.taken(owned, found, recreated)
        self._log.seek(partition, dict(zip(INBOUND, owned.offsets, strict=True)))
        self._log.resume([partition])  # a retake has paused it
        del self._wanted[partition]
        self._fenced.discard(partition)
        if ours is not None and found.last_token not in ours:
            # Nobody has told us, as when Postgres was away while we slept: whoever had this one may have the rest.
            self._fenced.update(self._wanted)
        self._metrics.partitions_owned.set(len(self.owned))


def _owned(found: Taken, ids: dict[str, str], inbound: tuple[str, ...]) -> tuple[Owned, list[str]]:
    """A topic under another id is another topic: it is read from its beginning (protocol 9)."""
    offsets = list(found.offsets)
    recreated = [name for name, known in found.topic_ids.items() if ids.get(name, known) != known]
    for index, name in enumerate(inbound):
        if name in recreated:
            offsets[index] = 0  # and not UNREAD: should it go too before it was read, that is told
    # A topic that is not there just now keeps its old id: when it comes back, it is told to be another one.
    topic_ids = {**found.topic_ids, **ids}
    owned = Owned(
        partition=found.partition,
        token=found.token,
        epoch=found.epoch,
        committed=found.offsets,
        offsets=offsets,
        outbox_seq=found.outbox_seq,
        confirmed=found.outbox[0][0] - 1 if found.outbox else found.outbox_seq,
        topic_ids=topic_ids,
        ids_changed=found.topic_ids != topic_ids,
    )
    return owned, recreated


def _delay(failures: int) -> float:
    return float(min(RETRY_MAXIMUM_S, RETRY_FIRST_S * 2 ** min(failures, 5)))  # no float holds 2**1024
