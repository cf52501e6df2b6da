"""``ductor-stream explain CODE``: what an error's page says of it, where there is no repository to look into.

A code is that of an error class, which has a page of its own, or one of a family (attempts, runs, suspensions, refusals,
dead letters), whose page has a section for each. Some words are in several: all that is said of them is printed.
"""

from __future__ import annotations

import re
from pathlib import Path

import click
from rich.markdown import Markdown

from ductor_stream.cli.failures import NotFound
from ductor_stream.cli.output import answer, console, print_table
from ductor_stream.config_rules import nearest


@click.command()
@click.argument("code", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def explain(code: str | None, as_json: bool) -> None:
    """What a code means and what to do: of errors, attempts, runs, suspensions, refusals and dead letters.

    Without one, all codes.
    """
    pages = explanations()
    if code is None:
        rows = [
            {"code": name, "of": of, "means": _meaning(text)} for name, found in pages.items() for of, text in found
        ]
        answer(rows, as_json, lambda found: print_table(("code", "of", "means"), found))
    elif code not in pages:
        raise NotFound(f"there is no code {code!r}{nearest(code, pages)}; `ductor-stream explain` lists them")
    else:
        text = "\n\n".join(text.strip() for _, text in pages[code]) + "\n"
        answer({"code": code, "text": text}, as_json, lambda found: _show(found["text"]))


def _show(page: str) -> None:
    out = console()
    if out.is_terminal:
        out.print(Markdown(page))
    else:
        click.echo(page, nl=False)


def explanations() -> dict[str, list[tuple[str, str]]]:
    """Each code, in alphabetical order, with all that is said of it: (what it is a code of, text)."""
    found = {code: [("error", text)] for code, text in error_pages().items()}
    for family, sections in code_sections().items():
        for code, text in sections.items():
            found.setdefault(code, []).append((family, text))
    return dict(sorted(found.items()))


def error_pages() -> dict[str, str]:
    """The pages of error classes by code, in alphabetical order."""
    return _pages(_folder())


def code_sections() -> dict[str, dict[str, str]]:
    """By family, the section of each of its codes, as a page of its own: headings one level up, the family under the first."""
    return {family: _sections(page) for family, page in _pages(_folder() / "codes").items()}


def _sections(page: str) -> dict[str, str]:
    head, *sections = re.split(r"^## `(\w+)`\n", page, flags=re.MULTILINE)
    about = head.split("\n\n")[1]
    return {
        code: f"# `{code}`\n\n{about}\n" + re.sub(r"^###", "##", text, flags=re.MULTILINE)
        for code, text in zip(sections[::2], sections[1::2], strict=True)
    }


def _pages(folder: Path) -> dict[str, str]:
    return {page.stem: page.read_text(encoding="utf-8") for page in sorted(folder.glob("*.md"))}


def _folder() -> Path:
    installed = Path(__file__).with_name("errors")
    return installed if installed.is_dir() else Path(__file__).parents[2] / "docs" / "errors"


def _meaning(page: str) -> str:
    """The sentences under the heading and the line about the class or family."""
    return page.split("\n\n")[2].strip()
