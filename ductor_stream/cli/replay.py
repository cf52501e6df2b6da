"""``ductor-stream replay``: exported histories against today's code, as a regression test before a deploy."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from ductor_stream.app import App
from ductor_stream.cli.failures import FAILED, end
from ductor_stream.cli.loading import load_app
from ductor_stream.cli.output import answer
from ductor_stream.errors import InvalidValue, UsageError


@click.command()
@click.argument("app", metavar="MODULE:APP")
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def replay(app: str, files: Sequence[Path], as_json: bool) -> None:
    """Replay histories that `runs export` wrote, and see that today's code decides the same.

    Exit code 1 when it decides otherwise; then both sides are shown, what was recorded and what the code wants.
    """
    loaded = load_app(app)
    found = [_replayed(loaded, file) for file in files]
    differing = [each for each in found if not each["ok"]]

    def show(_: object) -> None:
        for each in found:
            click.secho("same     " if each["ok"] else "differs  ", fg="green" if each["ok"] else "red", nl=False)
            click.echo(each["file"])
            if not each["ok"]:
                click.echo(f"  {each['code']}: {each['message']}")
                click.echo(_indented(each["stack"]), nl=False)
        click.echo(f"{len(found) - len(differing)} of {len(found)} histories replay")

    answer({"ok": not differing, "histories": found}, as_json, show)
    if differing:
        end(FAILED)


def _replayed(app: App, file: Path) -> dict[str, Any]:
    from ductor_stream.testing.replay import replay_history

    try:
        parked = replay_history(app, file.read_bytes())
    except OSError as error:
        raise InvalidValue(f"{file}: {error.strerror}") from error
    except UsageError as error:
        raise InvalidValue(f"{file}: {error}") from error
    return {
        "file": str(file),
        "ok": parked is None,
        "code": parked.code if parked is not None else None,
        "message": parked.message if parked is not None else None,
        "stack": parked.stack if parked is not None else None,
    }


def _indented(stack: str | None) -> str:
    return "".join(f"    {line}\n" for line in (stack or "").splitlines())
