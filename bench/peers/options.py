"""What one measurement may be told on its command line."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace


@dataclass(frozen=True)
class Options:
    """Times in seconds."""

    drivers: int = 1
    """Processes that start workflows."""
    workers: int = 1
    """Processes that execute, where a peer has them apart from the drivers; of ours: coordinators."""
    inflight: int = 32
    """Workflows in flight per driver (chains), or starts in flight (timers)."""
    warmup: int = 100
    """Workflows per driver before the measurement."""
    broker_warm: float = 30.0
    """How long a Kafka is warmed up, where there is one (ours)."""
    seconds: float = 25.0
    """How long chains are measured."""
    serial: int = 200
    """Chains, one at a time."""
    fanout: int = 1_000
    """Steps of the fan-out."""
    timers: int = 1_000
    """Workflows that are started at once and sleep."""
    sleep: float = 10.0
    """For so long."""
    long: int = 5_000
    """Steps of the one long workflow."""
    mode: str = ""
    """A peer's variant: words with a ``;`` between them, which its module explains."""

    def words(self) -> dict[str, str]:
        """The mode's words."""
        return {key: value for key, _, value in (word.partition("=") for word in self.mode.split(";")) if key}


def parsed(pairs: Iterable[str]) -> Options:
    """Options from ``name=value`` arguments."""
    shipped = asdict(Options())
    given = dict(pair.split("=", 1) for pair in pairs)
    return replace(Options(), **{name: type(shipped[name])(value) for name, value in given.items()})
