"""Every error code has its page, and every page its code."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from ductor_stream.errors import DuctorError

PAGES = Path(__file__).resolve().parents[2] / "docs/errors"


def tree(kind: type[DuctorError]) -> Iterator[type[DuctorError]]:
    if "code" in vars(kind):  # others are told apart by their class alone, and have their parent's page
        yield kind
    for child in kind.__subclasses__():
        yield from tree(child)


def test_every_code_has_a_page_that_names_its_class() -> None:
    for kind in tree(DuctorError):
        page = PAGES / f"{kind.code}.md"
        assert page.exists(), f"{kind.__name__} has no page {page.name}"
        text = page.read_text()
        assert text.startswith(f"# `{kind.code}`\n")
        assert f"`{kind.__name__}`" in text
        assert "## What to do" in text


def test_every_page_has_a_code() -> None:
    codes = {kind.code for kind in tree(DuctorError)}
    assert {page.stem for page in PAGES.glob("*.md")} == codes


def test_codes_are_unique() -> None:
    codes = [kind.code for kind in tree(DuctorError)]
    assert len(set(codes)) == len(codes)
