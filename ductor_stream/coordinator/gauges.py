"""What is measured now and then, not with each batch: lag per partition, and attempts in flight."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ductor_stream.coordinator.cache import RunCache
from ductor_stream.coordinator.config import CoordinatorConfig
from ductor_stream.coordinator.ownership import Owned
from ductor_stream.errors import LogUnavailable
from ductor_stream.ports import INBOUND, Clock, EventLog
from ductor_stream.telemetry.metrics import Metrics


class Gauges:
    """Looks every ``sweep_s`` seconds. ``behind_since`` is when (monotonic) lag was first seen, None without any."""

    def __init__(
        self, config: CoordinatorConfig, ports: tuple[EventLog, Clock], cache: RunCache, metrics: Metrics
    ) -> None:
        self._config, self._cache, self._metrics = config, cache, metrics
        self._log, self._clock = ports
        self._looked_at = 0.0
        self.behind_since: float | None = None

    def look(self, owned: Mapping[int, Owned]) -> None:
        """Measure, when it is time to; while Kafka is away the last figures stand."""
        now = self._clock.monotonic()
        if now - self._looked_at < self._config.sweep_s or not self._log.healthy():
            return
        self._looked_at = now
        self._metrics.attempts_in_flight.set(self._cache.in_flight())
        try:
            behind = sum(self._lag(mine) for mine in owned.values())
        except LogUnavailable:
            return
        self.behind_since = (self.behind_since or now) if behind else None

    def _lag(self, owned: Owned) -> int:
        total = 0
        ends = self._log.end_offsets(owned.partition)
        for topic, offset in zip(INBOUND, owned.committed, strict=True):
            # The stable end may lie behind transaction markers, which no consumer is given.
            read = max(0, offset, self._log.reached_end(owned.partition, topic))
            lag = max(0, ends[topic] - read)
            self._metrics.lag[topic, str(owned.partition)].set(lag)
            total += lag
        return total

    def forget(self, partitions: Iterable[int]) -> None:
        """These partitions are somebody else's: their series end here."""
        for partition in partitions:
            for topic in INBOUND:
                self._metrics.lag.forget((topic, str(partition)))
