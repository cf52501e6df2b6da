"""Metrics: each declared once, shared between the apps of a process, and documented."""

from __future__ import annotations

from pathlib import Path

from prometheus_client import CollectorRegistry, generate_latest

from ductor_stream.telemetry.metrics import Metrics, declarations, page

ROOT = Path(__file__).resolve().parents[3]


def exposed(registry: CollectorRegistry) -> list[str]:
    return generate_latest(registry).decode().splitlines()


def test_a_metric_without_labels_is_shown_from_the_start() -> None:
    metrics = Metrics(app="shop")
    assert 'ductor_ticks_total{app="shop"} 0.0' in exposed(metrics.registry)
    metrics.ticks.inc(3)
    assert 'ductor_ticks_total{app="shop"} 3.0' in exposed(metrics.registry)


def test_labels_are_indexed_and_kept() -> None:
    metrics = Metrics(app="shop")
    metrics.runs_closed["completed"].inc()
    assert metrics.runs_closed["completed"] is metrics.runs_closed["completed"]
    metrics.lag["run-events", "3"].set(7)
    lines = exposed(metrics.registry)
    assert 'ductor_runs_closed_total{app="shop",outcome="completed"} 1.0' in lines
    assert 'ductor_lag{app="shop",partition="3",topic="run-events"} 7.0' in lines


def test_a_forgotten_label_is_no_longer_shown() -> None:
    metrics = Metrics(app="shop")
    metrics.lag["run-events", "3"].set(7)
    metrics.lag.forget(("run-events", "3"))
    metrics.lag.forget(("run-events", "4"))
    assert not [line for line in exposed(metrics.registry) if line.startswith("ductor_lag{")]


def test_two_apps_of_one_process_share_a_registry() -> None:
    registry = CollectorRegistry()
    shop, bank = Metrics(registry, app="shop"), Metrics(registry, app="bank")
    shop.ticks.inc()
    bank.ticks.inc(2)
    assert {'ductor_ticks_total{app="shop"} 1.0', 'ductor_ticks_total{app="bank"} 2.0'} <= set(exposed(registry))


def test_names_are_unique_and_say_what_they_measure() -> None:
    found = [one for _, one in declarations()]
    names = [one.name for one in found]
    assert len(set(names)) == len(names)
    for one in found:
        assert one.name.startswith("ductor_")
        assert one.meaning.endswith(".")


def test_the_page_is_the_declarations() -> None:
    committed = (ROOT / "docs/operations/metrics.md").read_text()
    assert committed == page(), "run: python -m ductor_stream.telemetry.metrics > docs/operations/metrics.md"
