"""Every example in the guides is executed: the blocks of a page are one program."""

from __future__ import annotations

import re
import sys
import types
from pathlib import Path

import pytest
from pages import ROOT, fenced

GUIDES = sorted((ROOT / "docs/guides").glob("*.md"))


def program_of(page: Path) -> str:
    """The page's Python blocks, each at its own line, so that an error names the line of the page."""
    program = ""
    for block in fenced(page):
        if block.language == "python":
            program += "\n" * (block.line - 1 - program.count("\n")) + block.text
    return program


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
