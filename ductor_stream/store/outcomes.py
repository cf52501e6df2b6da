"""``OutcomeReader``: how runs have ended, for clients that wait. It never writes (R1)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec

from ductor_stream.engine.events import Failure, RunStarted
from ductor_stream.engine.fork import lineage
from ductor_stream.engine.rebuild import rebuild
from ductor_stream.engine.state import CLOSED, Record, UnknownFormat, decode_records
from ductor_stream.errors import RunNotFound, SchemaMismatch
from ductor_stream.outcomes import REJECTED, Outcome, Question
from ductor_stream.protocol.failures import failure_of
from ductor_stream.protocol.messages import WireError
from ductor_stream.store.columns import Texts, storable
from ductor_stream.store.reader import RunReader
from ductor_stream.store.rows import HistoryEntry

_KEPT = 10_000
"""Executions whose start is remembered: those that somebody waits for and that did not begin by a start."""

_PAGE = 10_000


class _Rows(RunReader):
    def find_outcomes(self, run_ids: list[str], start_ids: list[str]) -> list[tuple[Any, ...]]:
        return self._rows("find_outcomes", self._keyed(run_ids=Texts(run_ids), start_ids=Texts(start_ids)))

    def whole_history(self, run_id: str) -> Iterator[HistoryEntry]:
        after = 0
        while entries := self.history(run_id, after, _PAGE):
            yield from entries
            after = entries[-1].record_version


class OutcomeReader:
    """Reads one namespace. The connection is opened by the first question: a client that only sends needs none."""

    def __init__(self, dsn: str, namespace: str) -> None:
        self._dsn = dsn
        self._namespace = namespace
        self._reader: _Rows | None = None
        self._starts: dict[tuple[str, int], str] = {}

    def outcomes(self, questions: Sequence[Question]) -> dict[Question, Outcome]:
        """What is known, in one query; a run or a start that has not been applied yet is not in the answer.

        Raises StoreUnavailable, SchemaMismatch.
        """
        if self._reader is None:
            try:
                self._reader = _Rows(self._dsn, self._namespace)
            except RunNotFound:
                # No coordinator has started in this namespace yet: it will be there when one has.
                return {}
        try:
            return self._answers(self._reader, questions)
        except UnknownFormat as error:
            raise SchemaMismatch(str(error)) from error

    def close(self) -> None:
        """Close the connection, if one was opened."""
        if self._reader is not None:
            self._reader.close()
            self._reader = None

    def _answers(self, reader: _Rows, questions: Sequence[Question]) -> dict[Question, Outcome]:
        asked = [q for q in questions if storable(q.run_id) and storable(q.start_id)]
        rows = reader.find_outcomes([q.run_id for q in asked], [q.start_id for q in asked])
        found: dict[Question, Outcome] = {}
        for run_id, start_id, *columns, records, applied in rows:
            question, current = Question(run_id, start_id), _outcome(run_id, *columns)
            if not start_id or self._began(current, records) == start_id:
                found[question] = current
            elif applied:
                found[question] = self._through_history(reader, question, current)
        return found

    def _began(self, current: Outcome, first: bytes | None) -> str:
        """The start that the current execution goes back to; empty where only the whole history can tell."""
        known = self._starts.get((current.run_id, current.execution), "")
        if known or first is None:
            return known
        beginnings = [record.event for record in decode_records(first) if record.seq == 1]
        return beginnings[-1].start_id if beginnings and isinstance(beginnings[-1], RunStarted) else ""

    def _through_history(self, reader: _Rows, question: Question, current: Outcome) -> Outcome:
        """What became of a start that the row does not name: followed by others, continued as new, or refused."""
        records = [record for entry in reader.whole_history(question.run_id) for record in entry.records]
        starts = _starts(records)
        self._keep(current, starts)
        own = [execution for execution, start_id in starts.items() if start_id == question.start_id]
        if not own:
            refused = any(
                isinstance(record.event, RunStarted) and record.event.start_id == question.start_id
                for record in records
            )
            # A start that left no trace is from before what the history still has.
            if refused:
                return Outcome(question.run_id, current.execution, REJECTED, reason="run_exists")
            return current
        if max(own) == current.execution:
            return current
        return _replaced(question.run_id, max(own), lineage(records, max(own)))

    def _keep(self, current: Outcome, starts: dict[int, str]) -> None:
        """So that a run that goes on for long has its history read once, and not at each look."""
        if len(self._starts) >= _KEPT:
            self._starts.clear()
        if start_id := starts.get(current.execution):
            self._starts[current.run_id, current.execution] = start_id


def _starts(records: Iterable[Record]) -> dict[int, str]:
    """By execution, the start that it goes back to: a retry and ContinueAsNew go on with what they had."""
    found: dict[int, str] = {}
    latest = ""
    for record in records:
        if record.execution not in found:
            # By its seq: where the beginning was folded, what is first may be a start that the run refused.
            if isinstance(record.event, RunStarted) and record.seq == 1:
                latest = record.event.start_id
            found[record.execution] = latest
    return found


def _replaced(run_id: str, execution: int, records: Sequence[Record]) -> Outcome:
    """How an execution ended that a later start followed."""
    header = rebuild(run_id, records).header
    status, reason = header.status, ""
    if status not in CLOSED:
        # It was ended by that start, whose record belongs to the next execution.
        status, reason = "terminated", "replaced by another start"
    return Outcome(run_id, execution, status, header.workflow, header.version, header.result, header.failure, reason)


def _outcome(
    run_id: str,
    workflow: str,
    version: str,
    status: str,
    reason: str,
    execution: int,
    result: bytes | None,
    error: bytes | None,
) -> Outcome:
    failure: Failure | None = None
    if error:
        failure = failure_of(msgspec.json.decode(error, type=WireError), "failed")
    return Outcome(run_id, execution, status, workflow, version, result, failure, reason)
