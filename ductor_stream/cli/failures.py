"""How a command ends: exit codes, and errors of ours as one line with the remedy, never a traceback."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

import click
import msgspec

from ductor_stream.dev.lock import FolderInUse
from ductor_stream.engine.state import UnknownFormat
from ductor_stream.errors import (
    DuctorError,
    InvalidConfig,
    InvalidDefinition,
    InvalidValue,
    LogUnavailable,
    PayloadTooLarge,
    RunExists,
    RunNotFound,
    SchemaMismatch,
    StoreUnavailable,
    TopicsNotReady,
    UsageError,
)

OK, FAILED, USAGE, NOT_FOUND, REFUSED, UNREACHABLE = range(6)
INTERRUPTED = 130
"""What shells give to a program that was ended by Ctrl-C."""


class NotFound(UsageError):
    """What the command names does not exist, and is not a run (a dead letter, a namespace)."""


class Refused(DuctorError):
    """The engine said no: a command to a closed run, a start of a run that exists."""


# The first class that fits decides; a class stands before its bases.
_EXIT_CODES: tuple[tuple[type[DuctorError], int], ...] = (
    (RunNotFound, NOT_FOUND),
    (NotFound, NOT_FOUND),
    (Refused, REFUSED),
    (RunExists, REFUSED),
    (SchemaMismatch, REFUSED),
    (TopicsNotReady, REFUSED),
    (LogUnavailable, UNREACHABLE),
    (StoreUnavailable, UNREACHABLE),
    (InvalidConfig, USAGE),
    (InvalidDefinition, USAGE),
    (InvalidValue, USAGE),
    (PayloadTooLarge, USAGE),
)

_REMEDIES: dict[str, str] = {
    "run_not_found": "`ductor-stream runs list` shows the runs of this namespace",
    "schema_mismatch": "run `ductor-stream migrate`",
    "topics_not_ready": "run `ductor-stream topics check MODULE:app`, then `topics create`",
    "log_unavailable": "check DUCTOR_KAFKA_BOOTSTRAP, or start everything with `ductor-stream dev MODULE:app`",
    "store_unavailable": "check DUCTOR_DATABASE_URL, or start everything with `ductor-stream dev MODULE:app`",
    "run_exists": "choose another run id, or leave --on-conflict at use_existing",
    "dev_stack": "`ductor-stream explain dev_stack` says more; servers that run already are taken with --kafka and --database",
}


def exit_code(error: DuctorError) -> int:
    """The exit code of api.md for an error of ours."""
    return next((code for kind, code in _EXIT_CODES if isinstance(error, kind)), FAILED)


def remedy(error: DuctorError) -> str:
    """One line on what to do, or where to read about it."""
    if isinstance(error, FolderInUse):
        return "`ductor-stream dev status` shows a `dev`, `dev stop` ends it; --data-dir names another folder"
    if "uthorization failed" in str(error):
        return (
            "`ductor-stream acls MODULE:app` prints the rights that each process needs, `doctor` those that are missing"
        )
    if "permission denied for" in str(error):
        return "`ductor-stream grants` prints the rights that each role needs, `doctor` those that are missing"
    if "session keeps locked" in str(error) or "lock timeout" in str(error):
        return "try again when that session is done: pg_blocking_pids() and pg_stat_activity show which it is"
    if isinstance(error, Refused):
        return "`ductor-stream runs show RUN_ID` shows the run as it is"
    return _REMEDIES.get(error.code, f"`ductor-stream explain {error.code}` says more")


def report(error: DuctorError, as_json: bool) -> None:
    """Say on standard error what is wrong and what to do."""
    message = " ".join(str(error).split())
    if as_json:
        body = {"error": {"code": error.code, "message": message, "remedy": remedy(error)}}
        click.echo(msgspec.json.encode(body), err=True)
        return
    click.secho("error: ", fg="red", bold=True, nl=False, err=True)
    click.echo(f"{message}\n  {remedy(error)}", err=True)


def end(code: int) -> NoReturn:
    """Leave with this exit code."""
    raise SystemExit(code)


@contextmanager
def reported(as_json: bool) -> Iterator[None]:
    """Turn errors of ours into a line and an exit code; anything else is a bug and keeps its traceback."""
    try:
        yield
    except DuctorError as error:
        report(error, as_json)
        end(exit_code(error))
    except UnknownFormat as error:
        refusal = SchemaMismatch(str(error))
        report(refusal, as_json)
        end(exit_code(refusal))
    except KeyboardInterrupt:
        end(INTERRUPTED)
    except BrokenPipeError:
        # The reader of a pipe (head, less) has seen enough: that is no failure, and no flush at exit may say so.
        sys.stdout = None
        end(OK)
