"""``OutcomeReader``: how runs have ended, for clients that wait. It never writes (R1)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from ductor_stream.engine.events import Failure, RunStarted
from ductor_stream.engine.state import CLOSED, Record, UnknownFormat, decode_records
from ductor_stream.engine.tick import rebuild
from ductor_stream.errors import RunNotFound, SchemaMismatch
from ductor_stream.outcomes import REJECTED, Outcome, Question
from ductor_stream.protocol.failures import failure_of
from ductor_stream.protocol.messages import WireError
from ductor_stream.store.columns import Texts, storable
from ductor_stream.store.reader import RunReader


class _Rows(RunReader):
    def find_outcomes(self, run_ids: list[str], start_ids: list[str]) -> list[tuple[Any, ...]]:
        return self._rows("find_outcomes", self._keyed(run_ids=Texts(run_ids), start_ids=Texts(start_ids)))


class OutcomeReader:
    """Reads one namespace. The connection is opened by the first question: a client that only sends needs none."""

    def __init__(self, dsn: str, namespace: str) -> None:
        self._dsn = dsn
        self._namespace = namespace
        self._reader: _Rows | None = None

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
            question = Question(run_id, start_id)
            current = _outcome(run_id, *columns)
            if not start_id or (records and _began(decode_records(records), current.execution) == start_id):
                found[question] = current
            elif applied:
                found[question] = self._earlier(reader, question, current)
        return found

    def _earlier(self, reader: _Rows, question: Question, current: Outcome) -> Outcome:
        """What became of a start that did not begin the current execution: refused, or replaced by a later one."""
        records = [record for entry in reader.history(question.run_id) for record in entry.records]
        for execution in range(current.execution - 1, 0, -1):
            if _began(records, execution) == question.start_id:
                own = [record for record in records if record.execution == execution]
                header = rebuild(question.run_id, own).header
                # An execution that was ended by a later start is closed by that start's own record.
                status, reason = header.status, ""
                if status not in CLOSED:
                    status, reason = "terminated", "replaced by another start"
                return Outcome(
                    question.run_id,
                    execution,
                    status,
                    header.workflow,
                    header.version,
                    header.result,
                    header.failure,
                    reason,
                )
        return Outcome(question.run_id, current.execution, REJECTED, reason="run_exists")


def _began(records: Iterable[Record], execution: int) -> str:
    """The id of the start that began the execution, empty where these records do not have it."""
    for record in records:
        if record.execution == execution and isinstance(record.event, RunStarted) and record.seq == 1:
            return record.event.start_id
    return ""


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
