"""Readiness is red within ten seconds of whatever is gone: the bounds add up to less."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from ductor_stream.coordinator.config import CoordinatorConfig
from ductor_stream.coordinator.readiness import ROUND_S, Readiness
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
        gauges=SimpleNamespace(behind_since=None),
        dispatcher=SimpleNamespace(crowd=0),
        undelivered=SimpleNamespace(missing={}),
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


def test_an_idle_owner_asks_postgres_often_enough() -> None:
    assert CoordinatorConfig().sweep_s + StoreOptions().ping_timeout_ms / 1000 + CoordinatorConfig().idle_poll_s < 10


def test_kafka_is_asked_often_enough() -> None:
    assert watch.HEALTHY_SECONDS < RED_WITHIN_S
    assert watch.ASK_SECONDS + watch.ANSWER_SECONDS < watch.HEALTHY_SECONDS
