"""docs/rules.md names a place and an attack for every rule, and each of them exists."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "rules.md").read_text()


def test_every_path_exists() -> None:
    paths = re.findall(r"`((?:ductor_stream|tests)/[^`]+)`", PAGE)
    assert len(paths) > 40
    assert [path for path in paths if not (ROOT / path).exists()] == []


def test_every_rule_has_its_line() -> None:
    rules = re.findall(r"^- \*\*(R\d+b?) ", (ROOT / "docs" / "architecture.md").read_text(), re.MULTILINE)
    assert len(rules) == 13
    lines = {line.split("|")[1].split()[0]: line for line in PAGE.splitlines() if line.startswith("| R")}
    assert set(lines) == set(rules)
    assert all(line.count("`tests/") >= 1 for line in lines.values())
