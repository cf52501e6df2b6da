"""A run's recorded history as lines for people and as values for programs. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from ductor_stream.cli.description import error_text, moment
from ductor_stream.cli.verdicts import verdict_line
from ductor_stream.engine.events import (
    AttemptFinished,
    AttemptLost,
    AttemptTimedOut,
    ChildFinished,
    CommandReceived,
    Condemned,
    Continuation,
    Forked,
    Parent,
    Redeployed,
    RunStarted,
    RunTimedOut,
    SignalReceived,
    TimerFired,
)
from ductor_stream.engine.rebuild import refusals
from ductor_stream.engine.state import (
    AnyDecision,
    Completed,
    ContinuedAsNew,
    Failed,
    NodeCreated,
    NodeDropped,
    Patched,
    Record,
    SignalPassedOver,
    SignalTaken,
    ViewSet,
)
from ductor_stream.ports import Folded

_TIMES = frozenset({"now", "due_at"})
_REQUESTS = (CommandReceived, SignalReceived, RunStarted)

Entry = tuple[int, Sequence[Record]]
"""A ``record_version``, and the records of the commit that made it."""


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


class History:
    """A run's history, read page by page: each page is told with what the pages before it have named."""

    def __init__(self, run_id: str) -> None:
        self._run_id = run_id
        self._records: list[Record] = []
        self._names: dict[tuple[int, str], str] = {}
        self._origins: dict[int, int] = {}
        self._refused: dict[tuple[int, int], str] = {}

    def read(self, entries: Sequence[Entry]) -> None:
        """Take in the next page."""
        page = [record for _, records in entries for record in records]
        self._records += page
        for record in page:
            if isinstance(record.event, Forked):
                self._origins[record.execution] = record.event.from_execution
            for decision in record.decisions or ():
                if isinstance(decision, NodeCreated):
                    self._names[record.execution, decision.node_id] = decision.name or decision.kind
        # Whatever is refused was not put to the workflow: most pages need no second look.
        if any(isinstance(record.event, _REQUESTS) and record.decisions is None for record in page):
            self._refused = refusals(self._run_id, self._records)

    def refused(self, record: Record) -> str | None:
        """Why the request of this record was refused, in the wire contract's word; None if it was not."""
        return self._refused.get((record.execution, record.seq))

    def name(self, execution: int, node_id: str) -> str:
        """What the node is called: in this execution, or in those that a retry or reset took it over from."""
        seen: int | None = execution
        while seen is not None:
            if (seen, node_id) in self._names:
                return self._names[seen, node_id]
            seen = self._origins.get(seen)
        return "node"

    def values(self, entries: Sequence[Entry]) -> Iterator[dict[str, Any]]:
        """Each event of a page that was read, with what the workflow decided on it."""
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
                    "refused": self.refused(record),
                }

    def rows(self, entries: Sequence[Entry]) -> Iterator[dict[str, Any]]:
        """The same as rows of a table: what happened, and what came of it."""
        for record_version, records in entries:
            for record in records:
                yield {
                    "version": record_version,
                    "execution": record.execution,
                    "seq": record.seq,
                    "at": moment(record.now),
                    "event": _event_line(record, self),
                    "then": _then_line(record, self),
                }


def folded_value(folded: Folded) -> dict[str, Any]:
    """The part of a history that was folded: what is known of it."""
    return {
        "folded": {
            "record_versions": [1, folded.upto],
            "executions": [1, folded.execution],
            "first_at": moment(folded.first_at),
            "last_at": moment(folded.last_at),
            "events": folded.counts,
        }
    }


def folded_line(folded: Folded) -> str:
    """The same as a sentence above the table."""
    counts = ", ".join(f"{count:,} {kind}" for kind, count in sorted(folded.counts.items(), key=lambda one: -one[1]))
    return (
        f"versions 1 to {folded.upto:,} (executions 1 to {folded.execution:,}, from {moment(folded.first_at)} to "
        f"{moment(folded.last_at)}) are folded: {sum(folded.counts.values()):,} events, {counts}"
    )


def history_values(run_id: str, entries: Sequence[Entry]) -> list[dict[str, Any]]:
    """A whole history as values; entries are (record_version, records of that commit)."""
    history = History(run_id)
    history.read(entries)
    return list(history.values(entries))


def history_rows(run_id: str, entries: Sequence[Entry]) -> list[dict[str, Any]]:
    """A whole history as rows of a table."""
    history = History(run_id)
    history.read(entries)
    return list(history.rows(entries))


def _event_line(record: Record, history: History) -> str:
    def named(node_id: str) -> str:
        return f"{history.name(record.execution, node_id)} ({node_id})"

    match record.event:
        case RunStarted(since=since, parent=Parent(run_id=parent)) if since and record.seq > 1:
            return f"its parent {parent} was retried, and waits for it again"
        case RunStarted(workflow, version):
            return f"started {workflow} version {version}"
        case AttemptFinished() as report:
            told = error_text(report.failure) if report.failure is not None else verdict_line(report.output)
            return f"{named(report.node_id)} {report.outcome}" + (f": {told}" if told else "")
        case AttemptTimedOut() as given_up:
            return f"{named(given_up.node_id)} given up: {given_up.code}"
        case AttemptLost() as missing:
            return f"{named(missing.node_id)} sent again: its task was lost"
        case TimerFired() as fired:
            return f"timer of {named(fired.node_id)}"
        case SignalReceived() as signal:
            return f"signal {signal.name}"
        case CommandReceived() as command:
            asked = f"{command.kind} to node {command.to_node}" if command.to_node else command.kind
            asked += f" to transition {command.to_transition}" if command.to_transition is not None else ""
            return f"{asked} asked" + (f": {command.reason}" if command.reason else "")
        case Redeployed() as deployed:
            return f"code {deployed.digest[:12]} deployed"
        case Condemned() as condemned:
            return f"failed by force: {condemned.message}"
        case Continuation() as continued:
            return f"continued as execution {record.execution} of {continued.workflow}"
        case Forked() as fork:
            return f"{fork.kind}: execution {record.execution} goes on from {fork.from_execution}, event {fork.upto}"
        case ChildFinished() as child:
            return f"{named(child.node_id)} {child.status}: run {child.child_run_id}"
        case RunTimedOut():
            return "the run's timeout passed"
        case _:
            return "goes on"


def _then_line(record: Record, history: History) -> str:
    if record.parked is not None:
        return f"suspended: {record.parked.code}: {record.parked.message}"
    if (code := history.refused(record)) is not None:
        return f"refused: {code.replace('_', ' ')}"
    return ", ".join(_decision(decision, history, record.execution) for decision in record.decisions or ())


def _decision(decision: AnyDecision, history: History, execution: int) -> str:
    match decision:
        case NodeCreated() as created:
            return f"{created.kind} {created.name} ({created.node_id})".replace("timer  (", "timer (")
        case NodeDropped(node_id):
            return f"dropped {history.name(execution, node_id)} ({node_id})"
        case SignalTaken(_, node_id):
            return f"took signal ({node_id or 'at once'})"
        case SignalPassedOver(signal_id, _):
            return f"passed over signal {signal_id}: its payload does not fit"
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
