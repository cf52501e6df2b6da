"""``ductor-stream replay``: exported histories, and those of open runs, against today's code: before a deploy."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from ductor_stream.app import App
from ductor_stream.cli.connection import connection_options, settings_for
from ductor_stream.cli.failures import FAILED, end
from ductor_stream.cli.loading import load_app
from ductor_stream.cli.output import answer
from ductor_stream.cli.reading import whole_history
from ductor_stream.errors import InvalidValue, UsageError
from ductor_stream.store.reader import RunReader
from ductor_stream.store.rows import OpenRun

_NO_CODE = "no_code"
"""Told of a run whose workflow or version the app does not have."""


@click.command()
@click.argument("app", metavar="MODULE:APP")
@click.argument("files", nargs=-1, type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option(
    "--open",
    "newest",
    type=click.IntRange(0),
    default=0,
    metavar="N",
    help="Also the newest N runs that have not ended.",
)
@connection_options
def replay(app: str, files: Sequence[Path], newest: int, as_json: bool, **given: Any) -> None:
    """Replay histories that `runs export` wrote, or those of open runs, and see that today's code decides the same.

    Exit code 1 when it decides otherwise; then both sides are shown, what was recorded and what the code wants.
    """
    if not files and not newest:
        raise click.UsageError("give files that `runs export` wrote, or --open N")
    loaded = load_app(app)
    found = [_of_file(loaded, file) for file in files]
    if newest:
        settings = settings_for(of_app=True, **given)
        with RunReader(settings.need_database(), settings.topics(loaded.namespace).namespace) as reader:
            found += [_of_run(loaded, reader, run) for run in reader.open_runs(newest)]
    differing = [each for each in found if not each["ok"]]
    answer({"ok": not differing, "histories": found}, as_json, lambda _: _show(found, differing))
    if differing:
        end(FAILED)


def _show(found: Sequence[dict[str, Any]], differing: Sequence[dict[str, Any]]) -> None:
    for each in found:
        click.secho("same     " if each["ok"] else "differs  ", fg="green" if each["ok"] else "red", nl=False)
        click.echo(each["file"] or each["run_id"])
        if not each["ok"]:
            click.echo(f"  {each['code']}: {each['message']}")
            click.echo(_indented(each["stack"]), nl=False)
    click.echo(f"{len(found) - len(differing)} of {len(found)} histories replay")


def _of_run(app: App, reader: RunReader, run: OpenRun) -> dict[str, Any]:
    from ductor_stream.testing.replay import export_history

    told = {"file": None, "run_id": run.run_id}
    if (run.workflow, run.version) not in app.workflows:
        message = f"the app has no workflow {run.workflow} of version {run.version}"
        return {**told, "ok": False, "code": _NO_CODE, "message": message, "stack": None}
    records = [record for entry in whole_history(reader, run.run_id) for record in entry.records]
    return told | _verdict(app, export_history(run.run_id, records))


def _of_file(app: App, file: Path) -> dict[str, Any]:
    try:
        return {"file": str(file), "run_id": None} | _verdict(app, file.read_bytes())
    except OSError as error:
        raise InvalidValue(f"{file}: {error.strerror}") from error
    except UsageError as error:
        raise InvalidValue(f"{file}: {error}") from error


def _verdict(app: App, document: bytes) -> dict[str, Any]:
    from ductor_stream.testing.replay import replay_history

    parked = replay_history(app, document)
    return {
        "ok": parked is None,
        "code": parked.code if parked is not None else None,
        "message": parked.message if parked is not None else None,
        "stack": parked.stack if parked is not None else None,
    }


def _indented(stack: str | None) -> str:
    return "".join(f"    {line}\n" for line in (stack or "").splitlines())
