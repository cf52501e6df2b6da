"""A run that awaits nothing, and is not known to: no code of ours leaves one, a fault of ours might (R9)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import pytest

from ductor_stream.coordinator.cache import Cached
from ductor_stream.coordinator.config import CoordinatorConfig
from ductor_stream.coordinator.ownership import Owned
from ductor_stream.coordinator.watchdog import Watchdog
from ductor_stream.coordinator.work import Entry, Work
from ductor_stream.engine.events import Condemned
from ductor_stream.engine.state import FORMAT, Header, Held, Node, RunState, TimerDue
from ductor_stream.protocol.topics import Topics
from ductor_stream.telemetry.metrics import Metrics

OWNED = {0: Owned(0, "t", 1, (0, 0, 0), [0, 0, 0], 0, 0, {}, False)}


class Around:
    """Store, log, clock, cache, heartbeats, dispatcher and what is undelivered, of one run."""

    missing: frozenset[str] = frozenset()

    def __init__(self, state: RunState) -> None:
        self.state, self.time = state, 0.0

    def monotonic(self) -> float:
        return self.time

    def now(self) -> int:
        return 1_000_000

    def healthy(self) -> bool:
        return False

    def end_offsets(self, partition: int) -> dict[str, int]:
        return {"attempt-results": 0}

    def reached_end(self, partition: int, topic: str) -> int:
        return 0

    def open_runs(self, partition: int, limit: int, after: str, size: int) -> list[str]:
        return ["r"] if not after else []

    def partition_counts(self) -> dict[str, int]:
        return {}

    def load(self, run_ids: list[str]) -> Iterator[dict[str, Any]]:
        yield {run_id: Cached(3, self.state, None, 0, (), 1, None, 10) for run_id in run_ids}


def found(status: Literal["running", "paused", "suspended"], *, nodes: Any = None, held: Any = ()) -> list[Entry]:
    """What the look at all runs makes of one in that state."""
    header = Header(FORMAT, "r", "wf", "1", 1, status, 1, 1, 1, 1, b"null")
    around: Any = Around(RunState(header, nodes or {}, held=list(held)))
    config = CoordinatorConfig(watch_s=1.0)
    parts = ((around, around, around), (around, around), (around, around))
    dog = Watchdog(config, Topics("shop"), *parts, Metrics())
    work = Work()
    for turn in range(6):
        around.time = float(turn)
        dog.take(work, OWNED, 500)
    return work.entries


def test_a_run_that_awaits_nothing_is_failed_with_the_reason() -> None:
    entry = found("running")[0]
    assert (entry.run_id, entry.partition) == ("r", 0)
    assert entry.input == Condemned("stuck", "nothing is awaited: no step, timer, signal or child, and nothing is held")


@pytest.mark.parametrize(
    ("status", "more"),
    [
        ("paused", {}),
        ("suspended", {}),
        ("running", {"held": [Held(1, TimerDue("1"))]}),
        ("running", {"nodes": {"1": Node("1", "signal", "word", "waiting", 1)}}),
    ],
)
def test_one_that_awaits_something_or_says_why_it_does_not_is_left_alone(status: Any, more: Any) -> None:
    assert found(status, **more) == []
