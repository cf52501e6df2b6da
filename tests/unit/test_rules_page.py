"""docs/rules.md and docs/protocol.md name a place and an attack for each entry, docs/proof.md a test for each known fault: all exist."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "rules.md").read_text()
TRAPS = dict(re.findall(r"^(\d+)\. (.+(?:\n +.+)*)", (ROOT / "docs" / "protocol.md").read_text(), re.MULTILINE))


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


def test_every_trap_has_its_place_and_its_attack() -> None:
    assert list(TRAPS) == [str(number) for number in range(1, 30)]
    for number, text in TRAPS.items():
        paths = re.findall(r"`((?:ductor_stream|tests)/[^`]+)`", text)
        assert {path.partition("/")[0] for path in paths} == {"ductor_stream", "tests"}, number
        assert [path for path in paths if not (ROOT / path).exists()] == [], number


def test_every_number_of_a_trap_has_its_entry() -> None:
    used: dict[str, str] = {}
    for folder in ("ductor_stream", "docs", "tests"):
        for path in (ROOT / folder).rglob("*"):
            if path.suffix in (".py", ".sql", ".md"):
                for numbers in re.findall(r"[Pp]rotocol (\d+(?:(?:, |-| to )\d+)*)", path.read_text("utf-8")):
                    used.update(dict.fromkeys(re.findall(r"\d+", numbers), path.name))
    assert len(used) > 20
    assert {number: name for number, name in used.items() if number not in TRAPS} == {}


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
