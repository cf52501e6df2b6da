"""``ductor-stream explain CODE``: the page of an error, where there is no repository to look into."""

from __future__ import annotations

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
    """What an error means and what to do: the page of its CODE. Without one, all codes."""
    pages = error_pages()
    if code is None:
        rows = [{"code": name, "means": _meaning(text)} for name, text in pages.items()]
        answer(rows, as_json, lambda found: print_table(("code", "means"), found))
    elif code not in pages:
        raise NotFound(f"there is no error {code!r}{nearest(code, pages)}")
    else:
        answer({"code": code, "text": pages[code]}, as_json, lambda found: _show(found["text"]))


def _show(page: str) -> None:
    out = console()
    out.print(Markdown(page) if out.is_terminal else page, markup=False)


def error_pages() -> dict[str, str]:
    """The pages by code, in alphabetical order."""
    installed = Path(__file__).with_name("errors")
    folder = installed if installed.is_dir() else Path(__file__).parents[2] / "docs" / "errors"
    return {page.stem: page.read_text(encoding="utf-8") for page in sorted(folder.glob("*.md"))}


def _meaning(page: str) -> str:
    """The sentences under the heading and the line about the class."""
    return page.split("\n\n")[2].strip()
