"""A metric that nothing counts is a promise that is not kept."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ductor_stream.telemetry.metrics import declarations

TESTS = Path(__file__).resolve().parents[2]
WRITTEN = "\n".join(
    path.read_text() for path in TESTS.rglob("test_*.py") if path.parent.name not in ("telemetry", "deploy")
)
MARK = re.compile(r"pytest\.mark\.moves\(([^)]*)\)")
MARKED = {name for names in MARK.findall(WRITTEN) for name in re.findall(r'"(\w+)"', names)}
LOOKED_AT = MARK.sub("", WRITTEN)
PACKAGE = Path(__file__).resolve().parents[3] / "ductor_stream"
SOURCES = "\n".join(path.read_text() for path in PACKAGE.rglob("*.py") if path.parent.name != "telemetry")


@pytest.mark.parametrize("attribute", [attribute for attribute, _ in declarations()])
def test_each_declared_metric_is_counted_somewhere(attribute: str) -> None:
    alone = rf"\b{attribute}\b(\[[^\n]+\])?\.(inc|dec|set|observe)\("
    in_batches = rf"observe_all\([\w.]*\b{attribute}\b"
    assert re.search(alone, SOURCES) or re.search(in_batches, SOURCES)


@pytest.mark.parametrize(("attribute", "name"), [(attribute, each.name) for attribute, each in declarations()])
def test_each_declared_metric_moves_in_a_test(attribute: str, name: str) -> None:
    """In one that is marked with it, which fails where it does not move (``metrics_that_move`` of conftest).

    A test looks at it, too: by its name as it is served, or by its attribute; histograms in one loop of ``test_metrics_move``.
    """
    assert name in MARKED
    assert re.search(
        rf"[\"']{name}(_total|_count)?\b|\"{name.removeprefix('ductor_')}\"|metrics\.{attribute}\b", LOOKED_AT
    )
