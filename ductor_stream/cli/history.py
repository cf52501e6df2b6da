"""A run's recorded history as lines for people and as values for programs. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from ductor_stream.cli.description import error_text, moment
from ductor_stream.cli.verdicts import verdict_line
from ductor_stream.engine.events import (
    AttemptFinished,
    AttemptTimedOut,
    ChildFinished,
    CommandReceived,
    Condemned,
    Continued,
    Forked,
    Redeployed,
    RunStarted,
    RunTimedOut,
    SignalReceived,
    TimerFired,
)
from ductor_stream.engine.state import (
    AnyDecision,
    Completed,
    ContinuedAsNew,
    Failed,
    NodeCreated,
    NodeDropped,
    Patched,
    Record,
    SignalTaken,
    ViewSet,
)

_TIMES = frozenset({"now", "due_at"})


def plain(value: Any) -> Any:
    """A value of the engine as JSON has it: structs as objects with their ``type``, JSON bytes as what they hold."""
    if isinstance(value, msgspec.Struct):
        tag = value.__struct_config__.tag
        fields = {
            name: moment(found) if name in _TIMES and isinstance(found, int) else plain(found)
            for name, found in ((name, getattr(value, name)) for name in value.__struct_fields__)
            if found is not None and found != b""
        }
        return {"type": tag, **fields} if tag is not None else fields
    if isinstance(value, bytes):
        return _json_or_text(value)
    if isinstance(value, (list, tuple)):
        return [plain(one) for one in value]
    return value


def _json_or_text(raw: bytes) -> Any:
    try:
        return msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return raw.decode(errors="replace")


def history_values(entries: Sequence[tuple[int, Sequence[Record]]]) -> Iterator[dict[str, Any]]:
    """Each event of a run with what the workflow decided on it; entries are (record_version, records of that commit)."""
    for record_version, records in entries:
        for record in records:
            yield {
                "record_version": record_version,
                "execution": record.execution,
                "seq": record.seq,
                "at": moment(record.now),
                "event": plain(record.event),
                "decisions": plain(record.decisions),
                "parked": plain(record.parked),
            }


def history_rows(entries: Sequence[tuple[int, Sequence[Record]]]) -> Iterator[dict[str, Any]]:
    """The same as a row of a table: what happened, and what came of it."""
    names: dict[tuple[int, str], str] = {}
    for record_version, records in entries:
        for record in records:
            for decision in record.decisions or ():
                if isinstance(decision, NodeCreated):
                    names[record.execution, decision.node_id] = decision.name or decision.kind
            yield {
                "version": record_version,
                "execution": record.execution,
                "seq": record.seq,
                "at": moment(record.now),
                "event": _event_line(record, names),
                "then": _then_line(record, names),
            }


def _event_line(record: Record, names: dict[tuple[int, str], str]) -> str:
    def named(node_id: str) -> str:
        return f"{names.get((record.execution, node_id), '?')} ({node_id})"

    match record.event:
        case RunStarted(workflow, version):
            return f"started {workflow} version {version}"
        case AttemptFinished() as report:
            told = error_text(report.failure) if report.failure is not None else verdict_line(report.output)
            return f"{named(report.node_id)} {report.outcome}" + (f": {told}" if told else "")
        case AttemptTimedOut() as given_up:
            return f"{named(given_up.node_id)} given up: {given_up.code}"
        case TimerFired() as fired:
            return f"timer of {named(fired.node_id)}"
        case SignalReceived() as signal:
            return f"signal {signal.name}"
        case CommandReceived() as command:
            return f"{command.kind} asked" + (f": {command.reason}" if command.reason else "")
        case Redeployed() as deployed:
            return f"code {deployed.digest[:12]} deployed"
        case Condemned() as condemned:
            return f"failed by force: {condemned.message}"
        case Continued() as continued:
            return f"continued as execution {record.execution} of {continued.workflow}"
        case Forked() as fork:
            return f"{fork.kind}: execution {record.execution} goes on from {fork.from_execution}, event {fork.upto}"
        case ChildFinished() as child:
            return f"{named(child.node_id)} {child.status}: run {child.child_run_id}"
        case RunTimedOut():
            return "the run's timeout passed"
        case _:
            return "goes on"


def _then_line(record: Record, names: dict[tuple[int, str], str]) -> str:
    if record.parked is not None:
        return f"suspended: {record.parked.code}: {record.parked.message}"
    return ", ".join(_decision(decision, names, record.execution) for decision in record.decisions or ())


def _decision(decision: AnyDecision, names: dict[tuple[int, str], str], execution: int) -> str:
    match decision:
        case NodeCreated() as created:
            return f"{created.kind} {created.name} ({created.node_id})".replace("timer  (", "timer (")
        case NodeDropped(node_id):
            return f"dropped {names.get((execution, node_id), '?')} ({node_id})"
        case SignalTaken(_, node_id):
            return f"took signal ({node_id or 'at once'})"
        case Patched(change):
            return f"has change {change}"
        case ViewSet():
            return "shows its view"
        case ContinuedAsNew():
            return "continues as new"
        case Completed():
            return "completed"
        case Failed(failure):
            return f"failed: {error_text(failure)}"
        case _:
            return "cancelled"
