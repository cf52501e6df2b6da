"""Readiness is red within ten seconds of whatever is gone: the bounds add up to less."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from ductor_stream.coordinator.config import CoordinatorConfig
from ductor_stream.coordinator.gauges import AGAIN_S
from ductor_stream.coordinator.readiness import ROUND_S, STALLED_S, Readiness
from ductor_stream.kafka import watch
from ductor_stream.store.connection import StoreOptions

RED_WITHIN_S = 10.0


def coordinator(clock: SimpleNamespace) -> Any:
    return SimpleNamespace(
        clock=clock,
        config=CoordinatorConfig(),
        committed_at=0.0,
        ownership=SimpleNamespace(store_down=False, waiting=list),
        log=SimpleNamespace(healthy=lambda: True),
        gauges=SimpleNamespace(behind_since=None, misfits=[]),
        dispatcher=SimpleNamespace(crowd=0),
        undelivered=SimpleNamespace(refusing={}),
    )


def test_a_loop_that_waits_for_postgres_is_told_in_time() -> None:
    now = [100.0]
    readiness = Readiness(coordinator(SimpleNamespace(monotonic=lambda: now[0])))
    readiness.turned()
    now[0] += ROUND_S
    assert readiness.reasons() == []
    now[0] += 0.1
    assert readiness.reasons() == ["the loop has not come round for 7 s: Postgres or Kafka does not answer"]
    readiness.ticking(True)
    now[0] += 1
    assert readiness.reasons() == ["the loop has not come round for 8 s: workflow code is computing"]
    assert RED_WITHIN_S > ROUND_S


def test_lag_without_a_commit_is_told() -> None:
    now = [100.0]
    owner = coordinator(SimpleNamespace(monotonic=lambda: now[0]))
    readiness = Readiness(owner)

    def reasons_after(seconds: float) -> list[str]:
        now[0] += seconds
        readiness.turned()
        return readiness.reasons()

    owner.gauges.behind_since = 100.0
    assert reasons_after(STALLED_S) == []
    told = ["records wait in the inbound topics, and nothing has been committed for 4 s"]
    assert reasons_after(0.1) == told
    owner.committed_at = now[0]
    assert reasons_after(STALLED_S) == [], "a commit is progress"
    assert reasons_after(0.1) == told
    owner.gauges.behind_since = None
    assert reasons_after(0.0) == []


def test_a_backlog_that_is_being_worked_off_is_no_stall() -> None:
    """A batch of long histories, or a commit while Postgres writes its checkpoint: a few seconds of work, then a commit."""
    now = [100.0]
    owner = coordinator(SimpleNamespace(monotonic=lambda: now[0]))
    readiness = Readiness(owner)
    owner.gauges.behind_since = owner.committed_at = 100.0
    readiness.turned()
    now[0] += STALLED_S + 1
    assert readiness.reasons() == []
    readiness.turned()
    assert readiness.reasons() != [], "it has come round, and there is still no commit"


def test_a_broker_that_does_not_confirm_is_told_and_a_large_batch_on_its_way_is_not() -> None:
    now = [100.0]
    owner = coordinator(SimpleNamespace(monotonic=lambda: now[0]))
    readiness = Readiness(owner)
    owner.dispatcher.crowd, owner.committed_at = 1.2, 100.0
    now[0] += STALLED_S
    assert readiness.reasons() == []
    now[0] += 0.1
    assert readiness.reasons() == ["the broker does not confirm what was dispatched; intake rests"]


def test_lag_is_seen_and_told_in_time() -> None:
    """It comes to be just after a sweep, is seen by the next one, and the loop may wait for input before that."""
    assert CoordinatorConfig().sweep_s + CoordinatorConfig().idle_poll_s + STALLED_S < RED_WITHIN_S
    # That it is still there is looked up in between, more than once.
    assert 2 * (AGAIN_S + CoordinatorConfig().idle_poll_s) < STALLED_S


def test_unequal_topics_are_told_while_partitions_wait() -> None:
    owner = coordinator(SimpleNamespace(monotonic=lambda: 100.0))
    owner.gauges.misfits = ["raise it"]
    assert Readiness(owner).reasons() == ["raise it"]


def test_an_idle_owner_asks_postgres_often_enough() -> None:
    assert CoordinatorConfig().sweep_s + StoreOptions().ping_timeout_ms / 1000 + CoordinatorConfig().idle_poll_s < 10


def test_kafka_is_asked_often_enough() -> None:
    assert watch.HEALTHY_SECONDS < RED_WITHIN_S
    assert watch.ASK_SECONDS + watch.ANSWER_SECONDS < watch.HEALTHY_SECONDS
