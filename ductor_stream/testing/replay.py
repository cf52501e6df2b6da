"""Histories as regression tests: export what production decided, and see that today's code decides the same."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from ductor_stream.app import App
from ductor_stream.engine.definition import WorkflowDefinition
from ductor_stream.engine.events import Continuation, RunStarted
from ductor_stream.engine.fork import lineage
from ductor_stream.engine.state import FORMAT, Parked, Record, format_of
from ductor_stream.engine.tick import replay
from ductor_stream.errors import UsageError


class History(msgspec.Struct, frozen=True):
    """An exported history: the records of a run, JSON with bytes in base64."""

    format: int
    run_id: str
    records: list[Record]


def export_history(run_id: str, records: Sequence[Record]) -> bytes:
    """A run's records as a JSON document, to be kept beside the tests."""
    return msgspec.json.encode(History(format_of(records), run_id, list(records)))


def replay_history(app: App, document: bytes) -> Parked | None:
    """Replay an exported history with today's code: None when it decides the same, else how it differs.

    Raises UsageError when the document cannot be read, or the app does not have the run's workflow.
    """
    try:
        history = msgspec.json.decode(document, type=History)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"not an exported history: {error}") from error
    if history.format > FORMAT:
        raise UsageError(f"the history has format {history.format}, this release reads up to {FORMAT}")
    if not history.records:
        raise UsageError(f"the history of {history.run_id} is empty")
    records = lineage(history.records, history.records[-1].execution)
    return replay(_definition(app, records[0]), history.run_id, records)


def _definition(app: App, begin: Record) -> WorkflowDefinition:
    if not isinstance(begin.event, RunStarted | Continuation):
        raise UsageError("the history does not begin with a start")
    name, version = begin.event.workflow, begin.event.version
    workflow = app.workflows.get((name, version))
    if workflow is None:
        raise UsageError(f"the app has no workflow {name} of version {version}")
    return workflow.definition
