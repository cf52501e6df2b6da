"""``ductor-stream start|signal|cancel|terminate|pause|resume|retry|reset``: what is asked of a run, over Kafka."""

from __future__ import annotations

import sys
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import msgspec

from ductor_stream.cli.connection import connection_options, namespace_of, settings_for
from ductor_stream.cli.description import nodes_of
from ductor_stream.cli.failures import NotFound, Refused
from ductor_stream.cli.output import answer
from ductor_stream.config import Settings
from ductor_stream.config_rules import nearest
from ductor_stream.engine.events import CommandKind, CommandReceived, OnConflict
from ductor_stream.engine.fork import fork_for, lineage
from ductor_stream.engine.rebuild import rebuild
from ductor_stream.engine.state import CLOSED
from ductor_stream.engine.transitions import moved
from ductor_stream.errors import InvalidValue, RunNotFound
from ductor_stream.protocol.requests import Request
from ductor_stream.store.rows import RunRow

_CLOSE_WITHIN_S = 10.0
_SHOWN = 20
"""Nodes that a refusal names; the rest is counted."""


def json_argument(text: str, option: str) -> msgspec.Raw:
    """A JSON value as it was typed; ``@file`` is a file's content, ``@-`` is standard input. Raises InvalidValue."""
    try:
        raw = _content(text[1:]) if text.startswith("@") else text.encode()
        msgspec.json.decode(raw)
    except (OSError, msgspec.DecodeError, UnicodeError) as error:
        hint = f"; a text needs quotes: {option} '\"{text}\"'" if text[:1].isalpha() else ""
        raise InvalidValue(f"{option} is no JSON: {error}{hint}") from error
    return msgspec.Raw(raw)


def _content(path: str) -> bytes:
    return sys.stdin.buffer.read() if path == "-" else Path(path).read_bytes()


def find_run(settings: Settings, run_id: str) -> RunRow | None:
    """The run as Postgres has it; None where there is none, or no database to ask."""
    if not settings.has_database:
        return None
    from ductor_stream.cli.reading import open_reader

    try:
        with open_reader(settings) as reader:
            return reader.find_run(run_id)
    except RunNotFound:
        return None  # the namespace itself is new


def _refuse_unknown(settings: Settings, workflow: str) -> None:
    """A workflow that no coordinator has ever had would only be suspended. Raises NotFound, with the nearest name.

    Without a database, or where no coordinator has been yet, nothing is known of workflows.
    """
    if not settings.has_database:
        return
    from ductor_stream.cli.reading import open_reader

    with open_reader(settings) as reader:
        known = sorted({each.workflow for each in reader.declared()})
    if known and workflow not in known:
        offer = nearest(workflow, known) or f"; there are {', '.join(known[:_SHOWN])}"
        raise NotFound(f"no coordinator of {namespace_of(settings)} has a workflow {workflow!r}{offer}")


@click.command()
@click.argument("workflow")
@click.argument("run_id", required=False)
@click.option("--input", "input_", metavar="JSON|@FILE", help="The workflow's input.")
@click.option("--version", help="Of the workflow; else the last one declared.")
@click.option("--start-id", help="Makes a repeat of this command harmless with any --on-conflict.")
@click.option(
    "--on-conflict",
    type=click.Choice(["use_existing", "reject", "restart_if_closed", "restart_if_failed", "terminate_existing"]),
    default="use_existing",
    show_default=True,
    help="What to do where a run of that id exists.",
)
@click.option("--timeout", type=click.FloatRange(0), metavar="SECONDS", help="For the whole run.")
@connection_options
def start(
    workflow: str,
    run_id: str | None,
    input_: str | None,
    on_conflict: OnConflict,
    as_json: bool,
    **more: Any,
) -> None:
    """Start a run. Returns when Kafka has the request."""
    options = {name: more.pop(name) for name in ("version", "start_id", "timeout")}
    settings = settings_for(**more)
    run_id = run_id or uuid.uuid4().hex
    given = json_argument(input_, "--input") if input_ is not None else None
    existing = find_run(settings, run_id)
    if existing is None:
        _refuse_unknown(settings, workflow)
    if existing is not None and on_conflict == "reject":
        raise Refused(f"run {run_id} exists, and is {existing.status}")
    from ductor_stream.wiring import SyncClient

    with SyncClient.from_settings(namespace_of(settings), settings) as client:
        chosen = {name: value for name, value in options.items() if value is not None}
        client.start(workflow, given, run_id=run_id, on_conflict=on_conflict, **chosen)
    asked = {"run_id": run_id, "workflow": workflow, "existing": existing is not None}
    told = f"run {run_id} exists and is {existing.status}" if existing else f"run {run_id} was asked for"
    answer(asked, as_json, lambda _: click.echo(told))


@click.command()
@click.argument("run_id")
@click.argument("name")
@click.option("--json-payload", default="null", metavar="JSON|@FILE", help="What comes with the signal.")
@click.option("--signal-id", help="The run gets each id once; random if not given.")
@connection_options
def signal(run_id: str, name: str, json_payload: str, signal_id: str | None, as_json: bool, **given: Any) -> None:
    """Send a signal to a run. One that comes before its run waits for it."""
    settings = settings_for(**given)
    payload = json_argument(json_payload, "--json-payload")
    existing = find_run(settings, run_id)
    if existing is not None and existing.status in CLOSED:
        raise Refused(f"run {run_id} is {existing.status}")
    from ductor_stream.wiring import SyncClient

    signal_id = signal_id or uuid.uuid4().hex
    with SyncClient.from_settings(namespace_of(settings), settings) as client:
        client.handle(run_id).signal(name, payload, signal_id=signal_id)
    waits = "" if existing is not None or not settings.has_database else "; there is no such run yet: it waits for it"
    asked = {"run_id": run_id, "name": name, "signal_id": signal_id, "run_exists": existing is not None}
    answer(asked, as_json, lambda _: click.echo(f"signal {name} was sent to run {run_id}{waits}"))


def _command(kind: CommandKind, help_text: str, *options: Callable[[Any], Any]) -> click.Command:
    def command(
        run_id: str,
        reason: str,
        command_id: str | None,
        as_json: bool,
        to_node: str | None = None,
        to_transition: int | None = None,
        **given: Any,
    ) -> None:
        if kind == "reset" and (to_node is None) == (to_transition is None):
            raise click.UsageError("reset needs --to-node or --to-transition, one of them")
        settings = settings_for(**given)
        request = CommandReceived(kind, command_id or uuid.uuid4().hex, reason, to_node, to_transition)
        if settings.has_database:
            _refuse_early(kind, run_id, find_run(settings, run_id))
            if kind in ("retry", "reset"):
                _refuse_fork(settings, run_id, request)
        _send(settings, run_id, request)
        asked = {"run_id": run_id, "command": kind, "command_id": request.command_id}
        answer(asked, as_json, lambda _: click.echo(f"{kind} was sent to run {run_id}"))

    decorated: Any = command
    for decorate in reversed((click.argument("run_id"), *_COMMAND_OPTIONS, *options, connection_options)):
        decorated = decorate(decorated)
    made: click.Command = click.command(name=kind, help=help_text)(decorated)
    return made


_COMMAND_OPTIONS = (
    click.option("--reason", default="", help="Kept in the run's history."),
    click.option("--command-id", help="The run takes each id once; random if not given."),
)


def _send(settings: Settings, run_id: str, request: Request) -> None:
    """Send it and wait for the broker. Raises InvalidValue, LogUnavailable, TopicsNotReady."""
    from ductor_stream.wiring.clients import open_log, request_encoder

    topics = settings.topics(namespace_of(settings))
    record = request_encoder(topics, settings).encode(run_id, request)
    log = open_log(topics, settings, lifecycle=False)
    try:
        log.send(record).result()
    finally:
        log.close(_CLOSE_WITHIN_S)


def _refuse_early(kind: CommandKind, run_id: str, row: RunRow | None) -> None:
    """What the engine would refuse is refused here, where somebody hears it. Raises RunNotFound, Refused."""
    if row is None:
        raise RunNotFound(f"no run {run_id!r}")
    if kind == "retry" and row.status not in ("failed", "timed_out"):
        raise Refused(f"run {run_id} is {row.status}: only a failed or timed-out run can be tried again")
    if kind in ("retry", "reset"):
        return  # what else there is to say needs the run's history
    if row.status in CLOSED:
        raise Refused(f"run {run_id} is {row.status}")
    if kind == "cancel" and row.header.cancel_requested:
        raise Refused(f"run {run_id} was asked to end before")
    if kind in ("pause", "resume", "terminate") and moved(row.header.status, kind) is None:
        raise Refused(f"run {run_id} is {row.status}: it cannot be {kind}d")


def _refuse_fork(settings: Settings, run_id: str, request: CommandReceived) -> None:
    """A retry or reset that the run's history does not allow. Raises Refused, with the nodes that there are."""
    from ductor_stream.cli.reading import get_run, open_reader, whole_history

    with open_reader(settings) as reader:
        row = get_run(reader, run_id)
        records = [record for entry in whole_history(reader, run_id) for record in entry.records]
    own = lineage(records, row.execution)
    if fork_for(request, row.header, own) is not None:
        return
    if request.to_node is not None:
        nodes = [f"{node.node_id} ({node.name or node.kind})" for node in nodes_of(rebuild(run_id, own), own)]
        more = f" and {len(nodes) - _SHOWN} more" if len(nodes) > _SHOWN else ""
        there = f"it has {', '.join(nodes[:_SHOWN])}{more}" if nodes else "it has none yet"
        raise Refused(f"run {run_id} has no node {request.to_node!r}; {there}")
    if request.to_transition is not None:
        where = (
            f"`ductor-stream runs history {run_id}` has them, as seq of execution {row.execution}, up to before its end"
        )
        raise Refused(f"run {run_id} has no transition {request.to_transition} to go back to; {where}")
    raise Refused(f"run {run_id} failed as it began: there is nothing before that to go on from; start it again")


cancel = _command("cancel", "Ask a run to end: its cleanup runs.")
terminate = _command("terminate", "End a run at once, without its cleanup.")
pause = _command("pause", "Let a run decide nothing more until it is resumed; attempts that are out go on.")
resume = _command("resume", "Let a paused or suspended run go on.")
retry = _command("retry", "Try a failed or timed-out run again, from what failed.")
reset = _command(
    "reset",
    "Go back to a node of a run and do it again, or to a transition and go on from there.",
    click.option("--to-node", metavar="NODE_ID", help="As `runs show` has it."),
    click.option("--to-transition", type=click.IntRange(1), metavar="SEQ", help="As `runs history` has it."),
)
