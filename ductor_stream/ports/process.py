"""What a coordinator has in its own process: workers for SyncMatch, and a clock."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol


class LocalWorkers(Protocol):
    """Workers in the coordinator's own process. ``reserve`` is called before the commit, ``run_all`` after it."""

    def reserve(self, queue: str, step: str) -> bool:
        """Keep one slot for an attempt of that step; False when none is free or the step is not known here."""

    def cancel_reservation(self, queue: str) -> None:
        """Give a reserved slot back (the commit failed)."""

    def run_all(self, tasks: Iterable[tuple[bytes, bytes, Sequence[tuple[str, bytes]]]]) -> None:
        """Execute tasks in reserved slots: each its JSON form as it would stand on the topic, its key, its headers."""

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
