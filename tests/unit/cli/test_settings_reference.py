"""``docs/configuration.md`` is what the settings say of themselves, and each of them says something."""

from __future__ import annotations

from pathlib import Path

from ductor_stream.cli.settings_reference import docstrings, reference
from ductor_stream.config import OTHERS, VARIABLES, Settings

PAGE = Path(__file__).resolve().parents[3] / "docs/configuration.md"
REMEDY = (
    "docs/configuration.md is not what the settings say: "
    "python -m ductor_stream.cli.settings_reference > docs/configuration.md"
)


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == reference(), REMEDY


def test_every_setting_says_its_variable_and_its_meaning() -> None:
    told = docstrings()
    assert list(told) == list(Settings.__struct_fields__)
    for name, text in told.items():
        head, _, meaning = text.partition(": ")
        assert head.startswith("``") and len(meaning) > 10, f"{name}: {text}"


def test_every_variable_that_is_a_setting_has_its_row() -> None:
    page = reference()
    assert all(f"| `{name}` |" in page for name in OTHERS)
    for variable, (name, option) in VARIABLES.items():
        if option is None and variable == f"DUCTOR_{name.upper()}":
            assert f"| `{variable}` |" in page, variable
