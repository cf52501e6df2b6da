"""The alerts: valid, tried, each with its paragraph, and about metrics that there are."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import promql_parser
import pytest
import yaml
from deploy.tooling import CHART, EVERYTHING, ROOT, checked, named, rendered
from prometheus_client import CollectorRegistry

from ductor_stream.telemetry.metrics import Metrics

RULES: list[dict[str, Any]] = [
    rule
    for group in yaml.safe_load((ROOT / "deploy" / "alerts.yml").read_text("utf-8"))["groups"]
    for rule in group["rules"]
]
RUNBOOK = (ROOT / "docs" / "operations" / "alerts.md").read_text("utf-8")
METRICS = (ROOT / "docs" / "operations" / "metrics.md").read_text("utf-8")


def test_prometheus_takes_the_configuration_and_the_rules() -> None:
    checked("promtool", "check", "config", "deploy/prometheus.yml")
    checked("promtool", "check", "rules", str(CHART / "files" / "alerts.yml"))


def test_the_alerts_fire_when_they_should_and_only_then() -> None:
    checked("promtool", "test", "rules", "deploy/alerts_test.yml")


def test_each_alert_is_tried() -> None:
    tried = (ROOT / "deploy" / "alerts_test.yml").read_text("utf-8")
    assert [rule["alert"] for rule in RULES if f"alertname: {rule['alert']}\n" not in tried] == []


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_an_alert_says_how_bad_it_is_and_where_to_read_on(rule: dict[str, Any]) -> None:
    assert rule["labels"]["severity"] in ("critical", "warning")
    page, _, anchor = rule["annotations"]["runbook_url"].partition("#")
    assert page == "docs/operations/alerts.md" and anchor == rule["alert"].lower()
    assert f"\n## {rule['alert']}\n" in RUNBOOK


def declared() -> dict[str, set[str]]:
    """Every series that a process may show, with its labels."""
    registry = CollectorRegistry()
    Metrics(registry, app="shop")
    found: dict[str, set[str]] = {}
    for name, labels in re.findall(r"^\| `(\w+)` \| \w+ \| (.*?) \|", METRICS, re.MULTILINE):
        own = {"app", "instance", "job", *re.findall(r"`(\w+)`", labels)}
        found |= {name: own, f"{name}_bucket": own | {"le"}}
    return found | {"up": {"job", "instance"}}


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_an_alert_is_about_metrics_that_there_are(rule: dict[str, Any]) -> None:
    known = declared()
    promql_parser.parse(rule["expr"])
    names = set(re.findall(r"\b(?:ductor_\w+|up)\b", rule["expr"]))
    assert names and names <= known.keys()
    labels = {
        label.strip() for found in re.findall(r"\b(?:by|on) \(([^)]*)\)", rule["expr"]) for label in found.split(",")
    }
    assert labels - {""} <= set().union(*(known[name] for name in names))


def test_the_chart_hands_the_same_rules_to_the_operator(tmp_path: Path) -> None:
    rules = named(rendered(EVERYTHING, tmp_path), "PrometheusRule", "shop-ductor-stream")["spec"]["groups"][0]["rules"]
    base = "https://example.com/ductor-stream/"
    for ours, theirs in zip(RULES, rules, strict=True):
        assert theirs["annotations"].pop("runbook_url") == base + ours["annotations"]["runbook_url"]
        kept = {name: text for name, text in ours["annotations"].items() if name != "runbook_url"}
        assert theirs == ours | {"annotations": kept}
