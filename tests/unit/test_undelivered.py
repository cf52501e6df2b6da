"""Records of a topic that refuses them are tried again ever more rarely, and as soon as before once it was mended."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from ductor_stream.coordinator.config import CoordinatorConfig
from ductor_stream.coordinator.undelivered import Undelivered
from ductor_stream.ports import Outgoing
from ductor_stream.protocol.topics import Topics
from ductor_stream.telemetry.metrics import Metrics

TOPICS = Topics("shop")
GONE = TOPICS.tasks("gone")


def test_the_longer_a_topic_refuses_the_more_rarely_its_records_are_tried() -> None:
    """A hundred thousand of them would else be read, and written anew, every two seconds before all others of their inbox."""
    at = 0.0
    clock: Any = SimpleNamespace(monotonic=lambda: at, now=lambda: round(at * 1000))
    log: Any = SimpleNamespace(look_again=lambda: None)
    nobody: Any = None
    under_test = Undelivered(CoordinatorConfig(), TOPICS, (log, clock), (nobody, nobody), Metrics())
    owned: Any = SimpleNamespace(partition=0, epoch=1)

    def delay(after: float) -> int:
        nonlocal at
        at = after
        _, [row] = under_test.hold(owned, [Outgoing(GONE, b"k", b"v", [], 0)], {})
        assert row.not_before is not None
        return row.not_before - round(at * 1000)

    assert [delay(after) for after in (0, 10, 30, 55, 100)] == [2_000, 2_000, 3_000, 5_500, 10_000]
    assert [delay(150 + 50 * n) for n in range(5)] == [15_000, 20_000, 25_000, 30_000, 30_000]
    assert delay(500) == 2_000, "it was there for longer than any delay"
