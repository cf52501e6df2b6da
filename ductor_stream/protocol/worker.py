"""The worker's side: tasks and stops in, outcomes and heartbeats out."""

from __future__ import annotations

import functools
from typing import TypeVar

import msgspec

from ductor_stream.engine.events import AttemptFinished
from ductor_stream.engine.ids import Fence
from ductor_stream.errors import DataError
from ductor_stream.ports import Outgoing
from ductor_stream.protocol import headers, messages
from ductor_stream.protocol.failures import clean, value_bytes, wire_error
from ductor_stream.protocol.inbound import run_id_of
from ductor_stream.protocol.limits import MAX_DETAILS_BYTES, MAX_REASON, MAX_RECORD_BYTES, MAX_TASK_NESTING, MAX_WORKER
from ductor_stream.protocol.reading import Reader
from ductor_stream.protocol.registry import SchemaRegistry
from ductor_stream.protocol.times import milliseconds
from ductor_stream.protocol.writing import Format, Writer

_HEADERS = headers.wire_headers()
_Wire = TypeVar("_Wire", bound=messages.Attempt)


class Task(msgspec.Struct, frozen=True):
    """One attempt of one step. Durations and times are ms (times since 1970 UTC); ``input`` is JSON.

    ``context`` is what is carried along from the start; ``heartbeat_details`` the last attempt's, as JSON.
    """

    fence: Fence
    attempt: int
    step: str
    input: bytes
    idempotency_key: str
    dispatched_at: int | None
    start_to_close_ms: int | None
    schedule_to_start_ms: int | None
    deadline_at: int | None
    heartbeat_timeout_ms: int
    heartbeat_details: bytes | None
    requires: tuple[str, ...]
    results_topic: str
    context: dict[str, str]

    @property
    def run_id(self) -> str:
        """The run that waits for it."""
        return self.fence.run_id


class Stop(msgspec.Struct, frozen=True):
    """The attempt with this fence is no longer wanted."""

    fence: Fence
    reason: str


class WorkerCodec:
    """Reads and writes a worker's records. Not thread-safe where a registry is used.

    ``format`` is that of outcomes and heartbeats; tasks and stops are read in every form.
    """

    def __init__(self, format: Format = "json", registry: SchemaRegistry | None = None) -> None:
        self._tasks = Reader("a task topic", messages.BY_TOPIC["tasks"], registry, nesting=MAX_TASK_NESTING)
        self._control = Reader("attempt-control", messages.BY_TOPIC["attempt-control"], registry)
        self._writer = Writer(format, registry)

    def decode_task(self, key: bytes | None, value: bytes | None, record_headers: headers.Headers) -> Task:
        """A record of a task topic. Raises DataError (its reasons are ``vocabulary.REASONS``)."""
        run_id, wire = _read(self._tasks, messages.Task, key, value, record_headers)
        if not wire.results_topic:
            raise DataError("invalid_field", "task: results_topic is missing")
        return Task(
            fence=Fence(run_id, wire.execution, wire.node_id, wire.generation),
            attempt=wire.attempt,
            step=wire.step,
            input=value_bytes(wire.input, "input", MAX_RECORD_BYTES) or b"null",
            idempotency_key=wire.idempotency_key,
            dispatched_at=_moment("dispatched_at", wire.dispatched_at),
            start_to_close_ms=wire.start_to_close_ms,
            schedule_to_start_ms=wire.schedule_to_start_ms,
            deadline_at=_moment("deadline_at", wire.deadline_at),
            heartbeat_timeout_ms=wire.heartbeat_timeout_ms,
            heartbeat_details=_not_null(value_bytes(wire.heartbeat_details, "heartbeat_details", MAX_RECORD_BYTES)),
            requires=wire.requires,
            results_topic=wire.results_topic,
            context=headers.context_of(record_headers),
        )

    def decode_stop(self, key: bytes | None, value: bytes | None, record_headers: headers.Headers) -> Stop:
        """A record of ``attempt-control``. Raises DataError."""
        run_id, wire = _read(self._control, messages.AttemptStop, key, value, record_headers)
        return Stop(Fence(run_id, wire.execution, wire.node_id, wire.generation), clean(wire.reason, MAX_REASON))

    def encode_finished(self, task: Task, finished: AttemptFinished) -> Outgoing:
        """The outcome of an attempt, for the task's own results topic.

        The output must be one JSON document of at most ``MAX_PAYLOAD_BYTES`` (``json_text.document`` tells).
        """
        fence = task.fence
        message = messages.AttemptFinished(
            run_id=fence.run_id,
            execution=fence.execution,
            node_id=fence.node_id,
            generation=fence.generation,
            outcome=finished.outcome,
            output=messages.carried(finished.output),
            error=wire_error(finished.failure) if finished.failure else None,
            worker=clean(finished.worker, MAX_WORKER) or None,
            started_at=finished.started_at or None,
            finished_at=finished.finished_at or None,
        )
        return self._result(task, message)

    def encode_heartbeat(self, task: Task, worker: str, started_at: str, details: bytes | None = None) -> Outgoing:
        """A sign of life. Raises DataError ``oversized`` for details (JSON) of more than ``MAX_DETAILS_BYTES``."""
        if details is not None and len(details) > MAX_DETAILS_BYTES:
            raise DataError("oversized", f"details have {len(details):,} bytes, {MAX_DETAILS_BYTES:,} are the limit")
        fence = task.fence
        message = messages.AttemptHeartbeat(
            run_id=fence.run_id,
            execution=fence.execution,
            node_id=fence.node_id,
            generation=fence.generation,
            started_at=started_at or None,
            worker=clean(worker, MAX_WORKER) or None,
            details=messages.carried(details),
        )
        return self._result(task, message)

    def _result(self, task: Task, message: messages.WireMessage) -> Outgoing:
        return Outgoing(task.results_topic, task.fence.run_id.encode(), self._writer.write(message), _HEADERS)


@functools.lru_cache(maxsize=256)
def _written(text: str) -> int:
    """A batch of tasks was dispatched at the same moment: reading dates was a fifth of reading a task."""
    return milliseconds(text)


def _read(
    reader: Reader, struct: type[_Wire], key: bytes | None, value: bytes | None, record_headers: headers.Headers
) -> tuple[str, _Wire]:
    run_id = run_id_of(key)
    if value is None:
        raise DataError("tombstone", "the record has no value")
    headers.check_wire(record_headers)
    wire = reader.read(value)
    assert isinstance(wire, struct)  # the reader knows no other message
    if wire.run_id is not None and wire.run_id != run_id:
        raise DataError("run_id_mismatch", f"the key is {run_id[:100]!r}, the body says {wire.run_id[:100]!r}")
    return run_id, wire


def _moment(field: str, text: str | None) -> int | None:
    if text is None:
        return None
    try:
        return _written(text)
    except (ValueError, OverflowError) as error:
        raise DataError("invalid_field", f"task: {field}: {error}") from None


def _not_null(value: bytes | None) -> bytes | None:
    return None if value == b"null" else value


_codec = WorkerCodec()
decode_task = _codec.decode_task
decode_stop = _codec.decode_stop
encode_finished = _codec.encode_finished
encode_heartbeat = _codec.encode_heartbeat
