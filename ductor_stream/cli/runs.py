"""``ductor-stream runs list|show|history|export|watch``: read from Postgres, never written to it (R1)."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

import click

from ductor_stream.cli.connection import connection_options, settings_for
from ductor_stream.cli.error_places import error_fields, last_places, node_row
from ductor_stream.cli.failures import FAILED, OK, end
from ductor_stream.cli.history import Entry, History, folded_line, folded_value, history_rows, history_values
from ductor_stream.cli.output import answer, print_fields, print_json, print_table
from ductor_stream.cli.reading import get_run, listed, open_reader, shown, whole_history
from ductor_stream.cli.verdicts import explained_lines
from ductor_stream.engine.state import CLOSED
from ductor_stream.errors import RunNotFound
from ductor_stream.store.rows import HistoryEntry, RunRow

_STATUSES = ("running", "suspended", "paused", *sorted(CLOSED))
_LOOK_EVERY_S = 0.2
"""Between two looks of ``watch``: as fast as people read, as cheap as five lookups by key a second."""
_pause = threading.Event()
_T = TypeVar("_T")


@click.group()
def runs() -> None:
    """See what runs there are, and what they do."""


@runs.command(name="list")
@click.option("--status", type=click.Choice(_STATUSES), help="Only runs in this status.")
@click.option("--workflow", help="Only runs of this workflow.")
@click.option("--limit", type=click.IntRange(1, 10_000), default=50, show_default=True)
@connection_options
def list_(status: str | None, workflow: str | None, limit: int, as_json: bool, **given: Any) -> None:
    """Runs, newest first."""
    with open_reader(settings_for(**given)) as reader:
        found = [listed(row) for row in reader.list_runs(status, workflow, limit)]
    columns = ("run_id", "workflow", "version", "status", "execution", "started_at", "closed_at", "reason")
    answer(found, as_json, lambda rows: print_table(columns, rows, hide_empty=("reason",)))


@runs.command()
@click.argument("run_id")
@connection_options
def show(run_id: str, as_json: bool, **given: Any) -> None:
    """One run: its status, its nodes, and what it waits for."""
    settings = settings_for(**given)
    with open_reader(settings) as reader:
        found = shown(reader, get_run(reader, run_id), settings)
    answer(found, as_json, _show_run)


def _show_run(run: dict[str, Any]) -> None:
    hidden = ("nodes", "attempts", "input", "reason")
    places = last_places(run["attempts"], run["execution"])
    told = {name: value for name, value in run.items() if name not in hidden}
    print_fields(told | error_fields(run.get("error"), places.values()))
    if run["nodes"]:
        click.echo()
        columns = ("node_id", "kind", "name", "status", "generation", "attempts", "queue", "worker", "child", "error")
        rows = [node_row(node, places) for node in run["nodes"]]
        print_table(columns, rows, hide_empty=("queue", "worker", "child", "error"))
    if decided := explained_lines(run["nodes"]):
        click.echo("\n" + "\n".join(decided))


@runs.command()
@click.argument("run_id")
@connection_options
def history(run_id: str, as_json: bool, **given: Any) -> None:
    """Every event of a run, and what the workflow decided on it.

    Of executions that are long over only a summary is kept: it comes first.
    """
    with open_reader(settings_for(**given)) as reader:
        get_run(reader, run_id)
        found = whole_history(reader, run_id)
        folded = reader.folded(run_id)  # asked last: what was folded in between is in both, and told once
    entries = _entries([entry for entry in found if folded is None or entry.record_version > folded.upto])
    if as_json:
        print_json([*([folded_value(folded)] if folded is not None else []), *history_values(run_id, entries)])
        return
    if folded is not None:
        click.echo(folded_line(folded))
    print_table(("version", "seq", "at", "event", "then"), history_rows(run_id, entries))


@runs.command()
@click.argument("run_id")
@connection_options
def export(run_id: str, as_json: bool, **given: Any) -> None:
    """Print a run's history as the JSON that ``ductor_stream.testing.replay_history`` reads."""
    from ductor_stream.testing.replay import export_history

    with open_reader(settings_for(**given)) as reader:
        get_run(reader, run_id)
        records = [record for entry in whole_history(reader, run_id) for record in entry.records]
    click.echo(export_history(run_id, records))


@runs.command()
@click.argument("run_id")
@click.option("--within", type=click.FloatRange(0), default=10.0, help="Seconds to wait for the run to exist.")
@connection_options
def watch(run_id: str, within: float, as_json: bool, **given: Any) -> None:
    """Follow a run until it ends. Exit code 1 when it ends in another way than by completing.

    With --json each event is a line.
    """
    settings = settings_for(**given)
    seen, history = 0, History(run_id)
    with _appearing(lambda: open_reader(settings), within) as reader:
        row = _appearing(lambda: get_run(reader, run_id), within)
        while True:
            fresh = whole_history(reader, run_id, seen)
            entries = _entries(fresh)
            history.read(entries)
            for line in history.values(entries) if as_json else history.rows(entries):
                _print_event(line, as_json)
            seen = fresh[-1].record_version if fresh else seen
            if row.status in CLOSED and seen >= row.record_version:
                break
            _pause.wait(_LOOK_EVERY_S)
            row = get_run(reader, run_id)
    _print_end(row, as_json)
    end(OK if row.status == "completed" else FAILED)


def _appearing(look: Callable[[], _T], within: float) -> _T:
    """A run that was just started is there within moments: look again until it is."""
    deadline = time.monotonic() + within
    while True:
        try:
            return look()
        except RunNotFound:
            if time.monotonic() > deadline:
                raise
        _pause.wait(_LOOK_EVERY_S)


def _print_event(line: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(line)
        return
    then = f"  → {line['then']}" if line["then"] else ""
    click.echo(f"{line['at']:%H:%M:%S.%f}"[:-3] + f"  {line['event']}{then}")


def _print_end(row: RunRow, as_json: bool) -> None:
    if as_json:
        print_json(listed(row))
    else:
        click.echo(f"{row.run_id} {row.status}")


def _entries(found: list[HistoryEntry]) -> list[Entry]:
    return [(entry.record_version, entry.records) for entry in found]
