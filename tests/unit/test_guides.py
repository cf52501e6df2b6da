"""Every example in the guides is executed: the blocks of a page are one program."""

from __future__ import annotations

import re
import sys
import types
from pathlib import Path

import pytest

GUIDES = sorted((Path(__file__).resolve().parents[2] / "docs" / "guides").glob("*.md"))


def program_of(page: Path) -> str:
    """The page's Python blocks, each at its own line, so that an error names the line of the page."""
    lines = page.read_text().splitlines()
    kept, inside = [], False
    for line in lines:
        if line.startswith("```"):
            inside = line == "```python"
            kept.append("")
        else:
            kept.append(line if inside else "")
    return "\n".join(kept)


def test_there_are_guides() -> None:
    assert len(GUIDES) >= 4


@pytest.mark.parametrize("page", GUIDES, ids=lambda p: p.name)
def test_the_examples_of_a_guide_run(page: Path) -> None:
    name = "guide_" + re.sub(r"\W", "_", page.stem)
    module = types.ModuleType(name)
    module.__file__ = str(page)
    sys.modules[name] = module
    try:
        exec(compile(program_of(page), str(page), "exec"), module.__dict__)  # noqa: S102 - that is the test
    finally:
        del sys.modules[name]
