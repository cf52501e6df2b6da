"""A metric that nothing counts is a promise that is not kept."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ductor_stream.telemetry.metrics import declarations

PACKAGE = Path(__file__).resolve().parents[3] / "ductor_stream"
SOURCES = "\n".join(path.read_text() for path in PACKAGE.rglob("*.py") if path.parent.name != "telemetry")


@pytest.mark.parametrize("attribute", [attribute for attribute, _ in declarations()])
def test_each_declared_metric_is_counted_somewhere(attribute: str) -> None:
    alone = rf"\b{attribute}\b(\[[^\n]+\])?\.(inc|dec|set|observe)\("
    in_batches = rf"observe_all\([\w.]*\b{attribute}\b"
    assert re.search(alone, SOURCES) or re.search(in_batches, SOURCES)
