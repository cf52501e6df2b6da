"""What is looked at now and then, not with each batch: lag and what is held back, attempts in flight, unequal topics."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ductor_stream.coordinator.cache import RunCache
from ductor_stream.coordinator.config import CoordinatorConfig
from ductor_stream.coordinator.ownership import Owned
from ductor_stream.errors import LogUnavailable
from ductor_stream.ports import INBOUND, Clock, EventLog, Inbound
from ductor_stream.protocol.topics import Topics, misfits
from ductor_stream.telemetry.logs import get_logger
from ductor_stream.telemetry.metrics import Metrics

_log = get_logger(__name__)

AGAIN_S = 1.0
"""Lag that was seen, and no commit since: whether it is still there is looked up after so long, before it counts as a
stall. Else what was on its way at a sweep would turn an idle owner red until the next one."""


class Gauges:
    """Looks every ``sweep_s`` seconds. ``behind_since`` is when (monotonic) lag was first seen, None without any.

    ``misfits`` says which inbound topics do not fit the others, or N, and the command that mends it (protocol 7).
    """

    def __init__(
        self,
        config: CoordinatorConfig,
        topics: Topics,
        ports: tuple[EventLog, Clock],
        cache: RunCache,
        metrics: Metrics,
        partitions: int,
    ) -> None:
        self._config, self._topics, self._cache, self._metrics = config, topics, cache, metrics
        self._log, self._clock = ports
        self._n = partitions
        self._looked_at, self._answered = 0.0, True
        self._held: dict[tuple[Inbound, int], tuple[int, float]] = {}
        """Where records stand behind the stable end: that end, and since when it has not moved."""
        self.behind_since: float | None = None
        self.misfits: list[str] = []

    def look(self, owned: Mapping[int, Owned], committed_at: float) -> None:
        """Measure, when it is time to; while Kafka is away the last figures stand."""
        now = self._clock.monotonic()
        seen = self.behind_since is not None and self._answered
        doubtful = seen and now - max(self._looked_at, committed_at) >= AGAIN_S
        if (now - self._looked_at < self._config.sweep_s and not doubtful) or not self._log.healthy():
            return
        self._looked_at = now
        self._metrics.attempts_in_flight.set(self._cache.in_flight())
        try:
            self._compare()
            # Asked before the stable ends: what is still behind those cannot have been written in between.
            written = self._log.written_ends(owned)
            behind = sum(self._measure(mine, written, now) for mine in owned.values())
        except LogUnavailable:
            # A broker that hangs has kept us for seconds: asked in every turn, it would hold up all else.
            self._looked_at, self._answered = self._clock.monotonic(), False
            return
        self._answered = True
        self.behind_since = (self.behind_since or now) if behind else None

    def _compare(self) -> None:
        """A partition that one member does not hold in all three topics has no owner, and nobody would say so."""
        counts = self._log.partition_counts()
        found = list(misfits(self._topics, counts, self._n, self._log.hidden_topics()).values())
        if found != self.misfits:
            for text in found:
                _log.error("partitions may be without an owner", problem=text)
            if not found:
                _log.info("the inbound topics have equal numbers of partitions again")
        self.misfits = found
        self._metrics.inbound_misfits.set(len(found))

    def _measure(self, owned: Owned, written: Mapping[tuple[Inbound, int], int], now: float) -> int:
        """The lag of a partition; what an open transaction holds back is none, and is told by its age."""
        total = 0
        ends = self._log.end_offsets(owned.partition)
        for topic, offset in zip(INBOUND, owned.committed, strict=True):
            place, label = (topic, owned.partition), (topic, str(owned.partition))
            # The stable end may lie behind transaction markers, which no consumer is given.
            read = max(0, offset, self._log.reached_end(owned.partition, topic))
            lag = max(0, ends[topic] - read)
            self._metrics.lag[label].set(lag)
            total += lag
            stood, since = self._held.pop(place, (ends[topic], now))
            if written[place] > ends[topic]:
                # One that has ended lets the stable end move: then it is another's turn.
                self._held[place] = (ends[topic], since if stood == ends[topic] else now)
            self._metrics.held_back_seconds[label].set(now - self._held[place][1] if place in self._held else 0.0)
        return total

    def forget(self, partitions: Iterable[int]) -> None:
        """These partitions are somebody else's: their series end here."""
        for partition in partitions:
            for topic in INBOUND:
                self._held.pop((topic, partition), None)
                self._metrics.lag.forget((topic, str(partition)))
                self._metrics.held_back_seconds.forget((topic, str(partition)))
