"""What a worker says about an attempt, as records for the task's results topic."""

from __future__ import annotations

import threading
from functools import lru_cache
from typing import Any

import msgspec

from ductor_stream.engine import values
from ductor_stream.engine.events import AttemptFinished
from ductor_stream.errors import InvalidValue, PayloadTooLarge, TransientError
from ductor_stream.ports import Outgoing
from ductor_stream.protocol import worker as json_codec
from ductor_stream.protocol.json_text import too_deep
from ductor_stream.protocol.limits import MAX_DETAILS_BYTES, MAX_NESTING, MAX_RECORD_BYTES
from ductor_stream.protocol.times import rfc3339
from ductor_stream.protocol.worker import Task, WorkerCodec
from ductor_stream.telemetry.logs import get_logger, keys_of
from ductor_stream.worker.outcomes import Outcome

_log = get_logger(__name__)
_SHORT_MESSAGE = 1_000


class Reports:
    """Writes outcomes and heartbeats in the name of one worker. Used from any thread."""

    def __init__(self, worker: str, codec: WorkerCodec) -> None:
        self._worker = worker
        self._codec = codec
        self._lock = threading.Lock()

    def finished(self, task: Task, started_ms: int, outcome: Outcome, finished_ms: int) -> Outgoing:
        """The record of an outcome; whatever a failure says too much is cut until the record can be sent."""
        fence = task.fence
        event = AttemptFinished(
            fence.execution,
            fence.node_id,
            fence.generation,
            outcome.word,
            outcome.output,
            outcome.failure,
            self._worker,
            _time(started_ms),
            _time(finished_ms),
        )
        record = self._finished(task, event)
        if len(record.value) > MAX_RECORD_BYTES and event.failure is not None:
            short = event.failure.message[:_SHORT_MESSAGE]
            failure = msgspec.structs.replace(event.failure, stack=None, message=short)
            record = self._finished(task, msgspec.structs.replace(event, failure=failure))
        return record

    def heartbeat(self, task: Task, started_ms: int, details: bytes | None) -> Outgoing:
        """The record of a heartbeat."""
        try:
            with self._lock:
                return self._codec.encode_heartbeat(task, self._worker, _time(started_ms), details)
        except TransientError:
            return json_codec.encode_heartbeat(task, self._worker, _time(started_ms), details)

    def _finished(self, task: Task, event: AttemptFinished) -> Outgoing:
        try:
            with self._lock:
                return self._codec.encode_finished(task, event)
        except TransientError as error:
            # A result must not wait for a schema registry: JSON is taken on every inbound topic.
            told = "the schema registry is away: this result goes as JSON"
            _log.warning(told, error=str(error), **keys_of(task.fence))
            return json_codec.encode_finished(task, event)


def details_json(details: Any) -> bytes:
    """A heartbeat's details as JSON. Raises InvalidValue, PayloadTooLarge (over 16 KiB)."""
    raw = values.encode(details, "details")
    if too_deep(raw, MAX_NESTING - 1):
        raise InvalidValue(f"details: nested deeper than {MAX_NESTING - 1}")
    if len(raw) > MAX_DETAILS_BYTES:
        raise PayloadTooLarge(f"details of a heartbeat: {len(raw):,} bytes as JSON, the limit is {MAX_DETAILS_BYTES:,}")
    return raw


def _time(ms: int) -> str:
    return f"{_second(ms // 1000)}.{ms % 1000:03d}Z"


@lru_cache(maxsize=64)
def _second(seconds: int) -> str:
    """A time up to its second: the same for thousands of reports, and slow to write."""
    return rfc3339(seconds * 1000)[:-5]
