"""``ductor-stream dev status|stop|reset``: what is said to the ``dev`` of a folder from beside it."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import msgspec

from ductor_stream.cli.connection import DATA_DIR, find_dev
from ductor_stream.cli.failures import FAILED, NOT_FOUND, Refused, end
from ductor_stream.cli.output import answer, print_fields
from ductor_stream.dev.binaries import kept_for_all
from ductor_stream.dev.lock import FolderLock
from ductor_stream.dev.stack import running_pid
from ductor_stream.errors import DevStackError

STOP_WITHIN_S = 40.0
"""Workers may finish what runs (25 s); then Postgres and Kafka end in good order."""
_LOOK_EVERY_S = 0.1
_LOGS = ("app.log*", "coordinator-*.log*", "worker-*.log*")
_OURS = ("kafka", "postgres", "dev.json", *_LOGS, ".gitignore", "lock")
"""What a data directory has in it; nothing else is ever deleted, but for what demos have kept in theirs."""
_DEMOS = "demo*/lock"
_pause = threading.Event()

_data_dir = click.option(
    "--data-dir",
    type=click.Path(path_type=Path, file_okay=False),
    default=DATA_DIR,
    show_default=True,
    help="The data directory of the `dev` that is meant.",
)
_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


@click.command(name="status")
@_data_dir
@_json
def status(data_dir: Path, as_json: bool) -> None:
    """Whether a `dev` runs in this folder, and where its servers are. Exit code 3 when none does, 1 while it starts."""
    pid = running_pid(data_dir)
    servers = find_dev(data_dir) if pid is not None else None
    state = "stopped" if pid is None else "running" if servers is not None else "starting"
    where = msgspec.to_builtins(servers) if servers is not None else {"data_dir": str(data_dir.absolute())}
    answer({"state": state, "pid": pid, **where}, as_json, print_fields)
    if servers is None:
        end(NOT_FOUND if pid is None else FAILED)


@click.command(name="stop")
@_data_dir
@_json
def stop(data_dir: Path, as_json: bool) -> None:
    """End the `dev` of this folder, and wait until everything of it has ended."""
    pid = running_pid(data_dir)
    if pid:
        _end(pid, data_dir)
    told = f"process {pid} has ended" if pid else f"nothing runs in {data_dir}"
    answer({"stopped": bool(pid), "pid": pid}, as_json, lambda _: click.echo(told))


def _end(pid: int, data_dir: Path) -> None:
    try:
        os.kill(pid, signal.SIGTERM)
    except ProcessLookupError:
        return
    except PermissionError as error:
        raise DevStackError(f"process {pid} is another user's: stop it as that user") from error
    deadline = time.monotonic() + STOP_WITHIN_S
    while running_pid(data_dir) == pid:
        if time.monotonic() > deadline:
            raise DevStackError(f"process {pid} does not end: kill -9 {pid} is as safe as any crash")
        _pause.wait(_LOOK_EVERY_S)


@click.command(name="reset")
@_data_dir
@click.option("--cache", is_flag=True, help="Also what was fetched for all projects: Kafka's jars, its JVM's cache.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@_json
def reset(data_dir: Path, cache: bool, yes: bool, as_json: bool) -> None:
    """Delete what the `dev` of this folder keeps: all runs, topics and remembered ports; demos' too.

    Exit code 4 while one of them runs. With --cache nothing of this folder is left, nor of what this installation fetched;
    end the `dev` of every other folder first, which runs on what was fetched.
    """
    folders = [data_dir, *sorted(lock.parent for lock in data_dir.glob(_DEMOS))]
    for folder in folders:
        if (pid := running_pid(folder)) is not None:
            raise Refused(f"{folder} is in use by process {pid}: `ductor-stream dev stop` first")
    kept = {folder: [path for name in _OURS for path in folder.glob(name)] for folder in reversed(folders)}
    found = [path for paths in kept.values() for path in paths]
    fetched = kept_for_all() if cache else []
    if (found or fetched) and not yes:
        _ask(f"{data_dir.absolute()}" + " and what was fetched for all projects" * bool(fetched))
    for folder, paths in kept.items():
        if paths:
            _delete(folder, paths)
    remove(fetched)
    gone = [data_dir] * bool(found) + sorted({path.parent for path in fetched})
    told = f"deleted {', '.join(map(str, gone))}" if gone else f"there is nothing in {data_dir}"
    names = [str(path.relative_to(data_dir)) for path in found] + list(map(str, fetched))
    value: dict[str, Any] = {"data_dir": str(data_dir.absolute()), "deleted": names}
    answer(value, as_json, lambda _: click.echo(told))


def _ask(what: str) -> None:
    if not sys.stdin.isatty():
        raise click.UsageError("nobody is here to be asked: give --yes to delete all runs and topics")
    click.confirm(f"Delete all runs and topics in {what}?", abort=True, err=True)


def _delete(data_dir: Path, found: list[Path]) -> None:
    """Under the folder's lock, which goes last: a `dev` that starts meanwhile is refused."""
    lock = FolderLock(data_dir / "lock")
    lock.acquire()
    try:
        remove([*found, data_dir / "lock"])
    finally:
        lock.release()


def remove(found: Sequence[Path]) -> None:
    """Delete files and folders, and the folders that have nothing else in them. Raises DevStackError."""
    try:
        for path in found:
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
        for parent in {path.parent for path in found}:
            if not any(parent.iterdir()):
                parent.rmdir()
    except OSError as error:
        raise DevStackError(f"{error.filename} cannot be deleted: {error.strerror}") from error
