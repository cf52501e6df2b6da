"""docs/rules.md names a place and an attack for every rule, docs/proof.md a test for every known fault; each exists."""

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


def test_every_known_fault_has_its_test() -> None:
    page = (ROOT / "docs" / "proof.md").read_text().partition("## Faults known from other engines")[2]
    rows = [line for line in page.splitlines() if line.startswith("| ")][1:]
    assert len(rows) >= 14
    places = {"I": ROOT / "tests" / "integration" / "coordinator", "U": ROOT / "tests" / "unit" / "engine"}
    for row in rows:
        named = re.findall(r"([IU]) `(test_\w+\.py)::(test_\w+)`", row)
        assert named, row
        for place, file, test in named:
            assert f"def {test}(" in (places[place] / file).read_text(), (file, test)
