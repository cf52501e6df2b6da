"""Whether this owner makes progress, and if not, why: what ``/readyz`` says."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ductor_stream.coordinator.service import Coordinator

STALLED_S = 4.0
"""Lag without a commit for so long is a stall. It is seen with the next sweep only: both together stay below the ten
seconds that are promised, and that it is still there is looked up every second (``gauges.AGAIN_S``)."""

REFUSED_S = 10.0
"""For so long after a topic has last refused a record it is told of: refused ones are tried again every few seconds."""

_REMEDY = "`ductor-stream topics check`, `acls` and `doctor` look at topics, rights and clocks"

ROUND_S = 7.0
"""A loop that has not come round for so long waits for something: it does so in half a second when nothing comes. Below
the ten seconds that are promised for a Postgres that hangs in the middle of a commit."""


class Readiness:
    """Read from the health server's thread: looks at plain attributes only, and never waits."""

    def __init__(self, coordinator: Coordinator) -> None:
        self._coordinator = coordinator
        self._turned_at = coordinator.clock.monotonic()
        self._ticking_since: float | None = None

    def ticking(self, begins: bool) -> None:
        """Ticks of a batch begin or end: workflow code runs in between."""
        self._ticking_since = self._coordinator.clock.monotonic() if begins else None

    def ticking_for(self) -> float:
        """For how many seconds the ticks of the current batch have been running; 0 between batches."""
        since = self._ticking_since
        return 0.0 if since is None else self._coordinator.clock.monotonic() - since

    def turned(self) -> None:
        """The loop has come round."""
        self._ticking_since = None
        self._turned_at = self._coordinator.clock.monotonic()

    def reasons(self) -> list[str]:
        """Why the coordinator is not ready, each in one sentence; empty when it is."""
        coordinator = self._coordinator
        found: list[str] = []
        now = coordinator.clock.monotonic()
        if coordinator.ownership.store_down:
            found.append("Postgres cannot be reached; nothing is lost, the partitions are taken anew when it answers")
        if not coordinator.log.healthy():
            found.append("Kafka cannot be reached; nothing is lost, it goes on when a broker answers")
        if now - self._turned_at > ROUND_S:
            waits = "workflow code is computing" if self.ticking_for() else "Postgres or Kafka does not answer"
            found.append(f"the loop has not come round for {now - self._turned_at:.0f} s: {waits}")
        behind = coordinator.gauges.behind_since
        # A loop that is at work on a large batch is told above, if that takes too long: it stalls where it finds none.
        looked = min(now, self._turned_at + coordinator.config.idle_poll_s)
        if behind is not None and looked - max(behind, coordinator.committed_at) > STALLED_S:
            found.append(f"records wait in the inbound topics, and nothing has been committed for {STALLED_S:.0f} s")
        found += coordinator.gauges.misfits
        waiting = coordinator.ownership.waiting()
        if waiting and not found:
            found.append(f"partitions {waiting} are assigned and not yet taken")
        # One batch of large payloads may be over the bound by itself; what is confirmed is committed at once.
        if coordinator.dispatcher.crowd >= 1 and now - coordinator.committed_at > STALLED_S:
            found.append("the broker does not confirm what was dispatched; intake rests")
        for topic, refusal in list(coordinator.undelivered.refusing.items()):
            if now - refusal.at < REFUSED_S:
                found.append(f"topic {topic} refuses records: {refusal.error} ({_REMEDY})")
        return found
