"""``docs/cli.md`` is what the commands say of themselves, and each of them says something."""

from __future__ import annotations

import re
from pathlib import Path

from ductor_stream.cli.reference import reference

PAGE = Path(__file__).resolve().parents[3] / "docs/cli.md"
REMEDY = "docs/cli.md is not what the commands say: python -m ductor_stream.cli.reference > docs/cli.md"


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == reference(), REMEDY


def test_every_command_has_its_place_and_its_help() -> None:
    page = reference()
    sections = dict(re.findall(r"^## `ductor-stream ([^`]+)`\n\n(.*?)\n\n", page, flags=re.MULTILINE | re.DOTALL))
    wanted = (
        "doctor",
        "explain",
        "purge",
        "check",
        "replay",
        "deployments",
        "env",
        "config show",
        "topics plan",
        "dev",
        "dev reset",
        "start",
    )
    assert set(wanted) <= sections.keys()
    assert all(len(text) > 15 for text in sections.values()), sections


def test_options_that_have_a_bar_do_not_break_the_table() -> None:
    rows = [line for line in reference().splitlines() if line.startswith("| `")]
    assert rows
    assert all(len(re.findall(r"(?<!\\)\|", row)) == 3 for row in rows)
