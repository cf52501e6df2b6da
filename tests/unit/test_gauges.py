"""What an owner looks at every few seconds: its lag, what a producer's transaction holds back, unequal topics."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from ductor_stream.coordinator.config import CoordinatorConfig
from ductor_stream.coordinator.gauges import AGAIN_S, Gauges
from ductor_stream.errors import LogUnavailable
from ductor_stream.ports import INBOUND, Inbound
from ductor_stream.protocol.topics import Topics
from ductor_stream.telemetry.metrics import Metrics

SHOP = Topics("shop")
SWEEP_S = CoordinatorConfig().sweep_s


class World:
    """An owner of partition 0 and what its broker says; ``look`` lets time pass before it looks."""

    def __init__(self) -> None:
        self.now = 100.0
        self.committed_at = 0.0
        self.committed = [0, 0, 0]
        self.stable: dict[Inbound, int] = dict.fromkeys(INBOUND, 0)
        self.written: dict[Inbound, int] = dict.fromkeys(INBOUND, 0)
        self.counts = dict.fromkeys(SHOP.inbound_names, 4)
        self.hidden: frozenset[str] = frozenset()
        self.healthy, self.asked = True, 0
        log: Any = SimpleNamespace(
            healthy=lambda: self.healthy,
            partition_counts=lambda: self.counts,
            hidden_topics=lambda: self.hidden,
            written_ends=lambda partitions: {(topic, p): self.written[topic] for p in partitions for topic in INBOUND},
            end_offsets=self._ends,
            reached_end=lambda partition, topic: -1,
        )
        self.clock: Any = SimpleNamespace(monotonic=lambda: self.now)
        cache: Any = SimpleNamespace(in_flight=lambda: 0)
        self.metrics = Metrics()
        self.gauges = Gauges(CoordinatorConfig(), SHOP, (log, self.clock), cache, self.metrics, 4)

    def _ends(self, partition: int) -> dict[Inbound, int]:
        self.asked += 1
        return self.stable

    def look(self, after: float = SWEEP_S) -> None:
        self.now += after
        owned: Any = {0: SimpleNamespace(partition=0, committed=tuple(self.committed))}
        self.gauges.look(owned, self.committed_at)

    def value(self, name: str, topic: str = "run-events") -> float | None:
        return self.metrics.registry.get_sample_value(name, {"app": "", "topic": topic, "partition": "0"})


@pytest.fixture
def world() -> World:
    return World()


@pytest.mark.moves("ductor_lag")
def test_lag_is_measured_once_a_sweep(world: World) -> None:
    world.stable["run-events"] = world.written["run-events"] = 3
    world.look()
    assert (world.value("ductor_lag"), world.gauges.behind_since) == (3, world.now)
    world.committed[0] = 3
    world.committed_at = world.now
    world.look(SWEEP_S - 0.1)
    assert world.value("ductor_lag") == 0, "looked at again soon, since there was some"
    asked = world.asked
    world.look(SWEEP_S - 0.1)
    assert world.asked == asked
    world.look(0.1)
    assert world.asked == asked + 1


def test_what_was_on_its_way_at_a_sweep_is_no_stall(world: World) -> None:
    """It is committed a moment later, and nothing else comes: an idle owner must not turn red before the next sweep."""
    world.stable["run-events"] = world.written["run-events"] = 1
    world.look()
    world.committed[0] = 1
    world.committed_at = world.now + 0.01
    world.look(AGAIN_S)
    assert world.gauges.behind_since is not None
    world.look(0.01)
    assert world.gauges.behind_since is None


def test_while_commits_land_lag_is_not_asked_for_more_often(world: World) -> None:
    world.stable["run-events"] = world.written["run-events"] = 1_000
    world.look()
    asked = world.asked
    for _ in range(9):
        world.committed_at = world.now
        world.look(0.5)
    assert world.asked == asked


def test_lag_that_stays_keeps_the_time_when_it_was_first_seen(world: World) -> None:
    world.stable["wakeups"] = world.written["wakeups"] = 2
    world.look()
    first = world.now
    for _ in range(4):
        world.look(AGAIN_S)
    assert world.gauges.behind_since == first


@pytest.mark.moves("ductor_held_back_seconds")
def test_what_a_transaction_holds_back_is_told_by_its_age(world: World) -> None:
    """Protocol 26: everything up to the stable end is read and committed, so that there is no lag to see."""
    world.committed[0] = world.stable["run-events"] = 5
    world.written["run-events"] = 8
    world.look()
    assert world.value("ductor_held_back_seconds") == 0
    world.look()
    world.look()
    assert (world.value("ductor_lag"), world.value("ductor_held_back_seconds")) == (0, 2 * SWEEP_S)
    assert world.value("ductor_held_back_seconds", "wakeups") == 0
    world.committed[0] = world.stable["run-events"] = world.written["run-events"] = 9
    world.look()
    assert world.value("ductor_held_back_seconds") == 0


def test_one_transaction_after_the_other_holds_nothing_back(world: World) -> None:
    """A producer that is always in the middle of one: the stable end moves with each that ends."""
    for end in range(1, 9):
        world.committed[0] = world.stable["run-events"] = end
        world.written["run-events"] = end + 1
        world.look()
        assert world.value("ductor_held_back_seconds") == 0


def test_the_series_of_a_partition_end_with_its_ownership(world: World) -> None:
    world.written["run-events"] = 8
    world.look()
    world.gauges.forget([0])
    assert (world.value("ductor_lag"), world.value("ductor_held_back_seconds")) == (None, None)
    world.look()
    assert world.value("ductor_held_back_seconds") == 0, "the age is counted anew"


@pytest.mark.moves("ductor_inbound_misfits")
def test_unequal_topics_are_told_until_they_are_equal(world: World) -> None:
    """Protocol 7: with the command that mends it."""
    world.look()
    assert world.gauges.misfits == []
    world.counts = world.counts | {SHOP.run_events: 8}
    world.look()
    for name, why in zip(SHOP.inbound_names[1:], world.gauges.misfits, strict=True):
        assert why.endswith(
            f"(the inbound topics differ); raise it: kafka-topics.sh --alter --topic {name} --partitions 8"
        )
    assert world.metrics.registry.get_sample_value("ductor_inbound_misfits", {"app": ""}) == 2
    world.counts = dict.fromkeys(SHOP.inbound_names, 8)
    world.look()
    assert world.gauges.misfits == []
    assert world.metrics.registry.get_sample_value("ductor_inbound_misfits", {"app": ""}) == 0


def test_topics_below_n_and_topics_that_are_gone_are_told(world: World) -> None:
    world.counts = {name: 2 for name in SHOP.inbound_names if name != SHOP.wakeups}
    world.look()
    *few, gone = world.gauges.misfits
    assert ["created with 4 run partitions" in why and "--partitions 4" in why for why in few] == [True, True]
    assert "topics create" in gone


def test_a_topic_that_may_not_be_described_is_told_by_the_right_and_not_as_missing(world: World) -> None:
    del world.counts[SHOP.wakeups]
    world.hidden = frozenset({SHOP.wakeups})
    world.look()
    (told,) = world.gauges.misfits
    assert SHOP.wakeups in told and "DESCRIBE" in told and "`ductor-stream acls`" in told
    assert "missing" not in told and "topics create" not in told


def test_while_kafka_is_away_the_last_figures_stand(world: World) -> None:
    world.counts = world.counts | {SHOP.wakeups: 8}
    world.stable["run-events"] = world.written["run-events"] = 3
    world.look()
    known = world.gauges.misfits
    since = world.gauges.behind_since
    assert known

    def away() -> dict[str, int]:
        raise LogUnavailable("away")

    world.gauges._log.partition_counts = away  # type: ignore[method-assign]
    world.look()
    world.healthy = False
    world.look()
    assert (world.gauges.misfits, world.gauges.behind_since, world.value("ductor_lag")) == (known, since, 3)


def test_a_broker_that_hangs_is_not_asked_in_every_turn(world: World) -> None:
    """A question to it takes as long as a sweep does, and timers and local attempts wait meanwhile."""
    world.stable["run-events"] = world.written["run-events"] = 3
    world.look()
    asked = 0

    def hangs(partitions: object) -> dict[tuple[Inbound, int], int]:
        nonlocal asked
        asked += 1
        world.now += SWEEP_S
        raise LogUnavailable("timed out")

    world.gauges._log.written_ends = hangs  # type: ignore[method-assign]
    world.look()
    for _ in range(9):
        world.look(SWEEP_S / 10)
    assert asked == 1
    world.look(SWEEP_S / 10)
    assert asked == 2
