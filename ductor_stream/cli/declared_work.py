"""What ``check`` says about rules and connectors: rows that cannot be told apart, and what a worker will need. Pure."""

from __future__ import annotations

from typing import Any

import msgspec

from ductor_stream.app import App
from ductor_stream.cli.determinism import Finding
from ductor_stream.declarations import Step
from ductor_stream.rules.table import Table
from ductor_stream.work import Connector, HttpStep, KafkaStep, Rule, Secret


class DeclaredRule(msgspec.Struct, frozen=True):
    """A rule; ``policy`` is a table's hit policy, or ``expression``."""

    name: str
    version: str
    digest: str
    policy: str
    rows: int


class DeclaredConnector(msgspec.Struct, frozen=True):
    """A connector, where it goes to, and the names of the secrets that its worker's environment has to have."""

    name: str
    queue: str
    target: str
    secrets: list[str]


def rules_of(app: App) -> list[DeclaredRule]:
    """The rules of an app, by name."""
    found = [each for _, each in sorted(app.steps.items()) if isinstance(each, Rule)]
    return [DeclaredRule(each.name, each.version, each.digest, *_table(each.decider)) for each in found]


def connectors_of(app: App) -> list[DeclaredConnector]:
    """The connectors of an app, by name."""
    found = [each for _, each in sorted(app.steps.items()) if isinstance(each, Connector)]
    return [
        DeclaredConnector(each.name, each.definition.options.queue, _target(each), _secrets(each)) for each in found
    ]


def alike_rows(app: App) -> list[Finding]:
    """Rows of one table with the same conditions: under ``unique`` they are an error whenever they hit, under
    ``first`` the later one never hits."""
    findings = []
    for step in app.steps.values():
        decider = step.decider if isinstance(step, Rule) else None
        if not isinstance(decider, Table) or decider.parts.policy == "collect":
            continue
        seen: dict[str, str] = {}
        for row in decider.parts.rows:
            if row.default:
                continue
            before = seen.setdefault(repr(sorted(row.when.items())), row.name)
            if before != row.name:
                findings.append(_finding(step, row.name, before))
    return findings


def _finding(step: Step[..., Any], row: str, before: str) -> Finding:
    return Finding(
        step.origin.file,
        step.origin.line,
        1,
        "alike-rows",
        f"row {row!r}",
        f"it has the conditions of row {before!r}",
        "change one of them, or take it out",
        f"decision table {step.name}",
    )


def _table(decider: Any) -> tuple[str, int]:
    return (decider.parts.policy, len(decider.parts.rows)) if isinstance(decider, Table) else ("expression", 0)


def _target(step: Connector[..., Any]) -> str:
    if isinstance(step, HttpStep):
        return f"{step.request.method} {step.request.url}"
    return f"topic {step.record.topic}" if isinstance(step, KafkaStep) else ""


def _secrets(step: Connector[..., Any]) -> list[str]:
    headers = step.request.headers.values() if isinstance(step, HttpStep) else ()
    return sorted({value.name for value in headers if isinstance(value, Secret)})
