"""The pages of the repository and their fenced blocks: what every test that reads them goes by."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted(
    page for pattern in ("*.md", "docs/**/*.md", "examples/**/*.md", "bench/**/*.md") for page in ROOT.glob(pattern)
)
_FENCE = re.compile(r"```([^`]*)")


class Block(NamedTuple):
    """A fenced block. ``language`` is all that stands behind its fence; ``line`` is where its text begins, from 1."""

    language: str
    text: str
    line: int


def fenced(page: Path | str) -> list[Block]:
    """The blocks of a page (a path, from the repository's root) in their order.

    Raises:
        ValueError: a fence is indented, of another kind, or never closed: it would be taken for another one's end.
    """
    found: list[Block] = []
    opened: Block | None = None
    for number, line in enumerate((ROOT / page).read_text("utf-8").splitlines(), start=1):
        if not line.lstrip().startswith(("```", "~~~")):
            opened = opened and opened._replace(text=f"{opened.text}{line}\n")
            continue
        fence = _FENCE.fullmatch(line)
        if fence is None or (opened is not None and fence[1]):
            raise ValueError(f"{page}:{number}: {line} is no fence as the pages have them")
        if opened is None:
            opened = Block(fence[1], "", number + 1)
        else:
            found.append(opened)
            opened = None
    if opened is not None:
        raise ValueError(f"{page}:{opened.line}: the block is not closed")
    return found


def blocks(page: Path | str, language: str = "") -> list[str]:
    """The texts of those in that language; those without one are for a shell, or are what something says."""
    return [block.text for block in fenced(page) if block.language == language]


def lines(texts: Iterable[str]) -> list[str]:
    """The lines of blocks for a shell; one that ends with a backslash goes on in the next."""
    return [line for text in texts for line in text.replace("\\\n", " ").splitlines() if line.strip()]
