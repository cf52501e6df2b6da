"""What commands print: tables for people, JSON for programs. Standard output has the answer and nothing else."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

import click
import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

STATUS_STYLES = {
    "running": "cyan",
    "completed": "green",
    "failed": "red",
    "timed_out": "red",
    "suspended": "yellow",
    "paused": "yellow",
    "cancelled": "magenta",
    "terminated": "magenta",
}
# Where there is no terminal (a pipe, a log) nobody folds lines for us, and cut cells would hide what is looked for.
_PIPE_WIDTH = 200


def console() -> Console:
    """A console on standard output as it is now (tests replace it)."""
    return Console(width=None if sys.stdout.isatty() else _PIPE_WIDTH, highlight=False)


def print_json(value: Any) -> None:
    """One JSON document on one line."""
    click.echo(msgspec.json.encode(value, enc_hook=str))


def cell(value: Any) -> Text:
    """A value as a table shows it: statuses coloured, times in UTC, nothing as a dash."""
    if value is None or value == "":
        return Text("–", style="dim")
    if isinstance(value, datetime):
        return Text(value.strftime("%Y-%m-%d %H:%M:%SZ"))
    if isinstance(value, (dict, list)):
        return Text(msgspec.json.encode(value, enc_hook=str).decode())
    text = str(value)
    return Text(text, style=STATUS_STYLES.get(text, ""))


def print_table(columns: Sequence[str], rows: Iterable[Mapping[str, Any]], hide_empty: Sequence[str] = ()) -> None:
    """Rows under these columns, in this order; a column's heading is its key with spaces.

    Columns in ``hide_empty`` are left out where no row has a value for them.
    """
    rows = list(rows)
    columns = [name for name in columns if name not in hide_empty or any(row.get(name) for row in rows)]
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column.replace("_", " "), overflow="fold")
    for row in rows:
        table.add_row(*(cell(row.get(column)) for column in columns))
    console().print(table)


def print_fields(fields: Mapping[str, Any]) -> None:
    """One thing: a name and a value a line; what has no value is left out."""
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for name, value in fields.items():
        if value is not None and value != "":
            table.add_row(name.replace("_", " "), cell(value))
    console().print(table)


def answer(value: Any, as_json: bool, show: Callable[[Any], None]) -> None:
    """Print a command's answer in the form that was asked for."""
    if as_json:
        print_json(value)
    else:
        show(value)
