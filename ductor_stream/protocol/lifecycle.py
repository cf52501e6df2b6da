"""Lifecycle events: CloudEvents in Kafka's binary mode, written by coordinators and read by clients."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Raw

from ductor_stream.engine.actions import EmitLifecycle
from ductor_stream.engine.events import Failure
from ductor_stream.errors import DataError
from ductor_stream.protocol import headers, json_text
from ductor_stream.protocol.failures import clean, value_bytes, wire_error
from ductor_stream.protocol.limits import MAX_NUMBER, MAX_REASON, MAX_RECORD_BYTES, MAX_TASK_NESTING
from ductor_stream.protocol.messages import ABSENT, WireError, carried
from ductor_stream.protocol.reading_avro import AvroReader
from ductor_stream.protocol.registry import SchemaRegistry
from ductor_stream.protocol.times import rfc3339
from ductor_stream.protocol.writing import Writer

TYPE_PREFIX = "ductor."
SCHEMA = "run.lifecycle"
"""Type of the data in Avro; in JSON no field says it, the event's own type stands in ``ce_type``."""

_STATUS: dict[str, str] = {
    "run.started": "running",
    "run.suspended": "suspended",
    "run.resumed": "running",
    "run.paused": "paused",
    "run.continued": "running",
    "run.redriven": "running",
    "run.completed": "completed",
    "run.failed": "failed",
    "run.cancelled": "cancelled",
    "run.terminated": "terminated",
    "run.timed_out": "timed_out",
}
_STARTS_REFUSED = "run_exists"
_ANSWERED = "start.answered"
UNNUMBERED = (_ANSWERED, "run.contended")
"""They repeat the number of the event before them, and are told apart by what they are about."""


class LifecycleData(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The data of a lifecycle event, as it stands in the record's value."""

    run_id: str
    execution: int
    workflow: str
    version: str
    seq: int
    record_version: int
    status: str | None = None
    result: Raw = ABSENT
    error: WireError | None = None
    reason: str | None = None
    command_id: str | None = None
    start_id: str | None = None
    code: str | None = None


class LifecycleEvent(msgspec.Struct, frozen=True):
    """What a client learns of a run. ``type`` is without ``ductor.``; ``seq`` is dense per run: a gap is a loss.

    ``about`` is the id of the refused start or command, ``code`` why it was refused; ``result`` is JSON. A
    ``start.answered`` says how the run had ended that the start ``about`` uses, or had begun before; with the status
    ``rejected`` and a ``code``, that it had been refused. Its ``seq`` is that of the event before it, as is that of ``run.contended``, which says in ``reason`` how often the run has lost its version check.
    """

    run_id: str
    execution: int
    type: str
    workflow: str
    version: str
    seq: int
    record_version: int
    time: str
    status: str | None = None
    result: bytes | None = None
    error: Failure | None = None
    reason: str = ""
    about: str = ""
    code: str = ""


_decoder = msgspec.json.Decoder(LifecycleData)


def event_headers(
    namespace: str, source: str, run_id: str, action: EmitLifecycle, content_type: str
) -> list[tuple[str, bytes]]:
    """The attributes of the event as headers."""
    return [
        *headers.wire_headers(),
        ("ce_specversion", b"1.0"),
        ("ce_id", _event_id(namespace, run_id, action).encode()),
        ("ce_source", source.encode()),
        ("ce_type", f"{TYPE_PREFIX}{action.type}".encode()),
        ("ce_subject", run_id.encode()),
        ("ce_time", rfc3339(action.now).encode()),
        ("content-type", content_type.encode()),
    ]


def _event_id(namespace: str, run_id: str, action: EmitLifecycle) -> str:
    told = f"{namespace}/{run_id}/{action.execution}/{action.seq}"
    return f"{told}/{action.about}" if action.type in UNNUMBERED else told


def event_data(
    writer: Writer, run_id: str, workflow: str, version: str, action: EmitLifecycle, record_version: int
) -> bytes:
    """The event's data, as the writer writes. An error that does not fit is told without its stack, then without its details."""
    starts = action.reason == _STARTS_REFUSED
    rejected = action.type == "command.rejected" or (starts and action.type == _ANSWERED)
    data = LifecycleData(
        run_id=run_id,
        execution=action.execution,
        workflow=workflow,
        version=version,
        seq=action.seq,
        record_version=record_version,
        status=action.status or _STATUS.get(action.type),
        result=carried(action.result),
        error=wire_error(action.failure) if action.failure else None,
        reason=None if rejected else clean(action.reason, MAX_REASON) or None,
        command_id=action.about if rejected and not starts else None,
        start_id=action.about or None if action.type in ("run.started", _ANSWERED) or (rejected and starts) else None,
        code=action.reason if rejected else None,
    )
    raw = writer.write_as(SCHEMA, data)
    for field, nothing in (("stack", None), ("details", ABSENT)):
        if len(raw) > MAX_RECORD_BYTES and data.error is not None:
            error = msgspec.structs.replace(data.error, **{field: nothing})
            data = msgspec.structs.replace(data, error=error)
            raw = writer.write_as(SCHEMA, data)
    return raw


class LifecycleReader:
    """Reads ``run-lifecycle``, in whatever form an event is. Not thread-safe where a registry is used."""

    def __init__(self, registry: SchemaRegistry | None = None) -> None:
        self._avro = AvroReader(registry, MAX_TASK_NESTING)

    def decode(self, key: bytes | None, value: bytes | None, record_headers: headers.Headers) -> LifecycleEvent:
        """Read a record. Raises DataError for what is no lifecycle event, TransientError while a registry is away."""
        type = (headers.text(record_headers, "ce_type") or "").removeprefix(TYPE_PREFIX)
        if type not in _STATUS and type not in ("command.rejected", *UNNUMBERED):
            raise DataError("unknown_type", f"no lifecycle event is called {type[:100]!r}")
        if value is None:
            raise DataError("tombstone", "the record has no value")
        data = self._read(value)
        if max(data.execution, data.seq) > MAX_NUMBER or min(data.execution, data.seq) < 1:
            raise DataError("invalid_field", "execution or seq is out of range")
        if key is not None and key != data.run_id.encode("utf-8", "replace"):
            raise DataError("run_id_mismatch", "the key is another run's")
        return LifecycleEvent(
            **_common(data), type=type, time=headers.text(record_headers, "ce_time") or "", error=_failure(data.error)
        )

    def _read(self, value: bytes) -> LifecycleData:
        if (datum := self._avro.datum(value)) is not None:
            if datum.form.type != SCHEMA:
                raise DataError("unknown_type", f"{datum.form.type} is no lifecycle event")
            return self._avro.convert(datum, LifecycleData)
        if json_text.too_deep(value, MAX_TASK_NESTING):
            raise DataError("undecodable", f"JSON nested deeper than {MAX_TASK_NESTING}")
        try:
            value.decode()
            return _decoder.decode(value)
        except msgspec.ValidationError as error:
            raise DataError("invalid_field", str(error)) from None
        except (ValueError, RecursionError) as error:
            raise DataError("undecodable", f"malformed JSON: {error}") from None


def _common(data: LifecycleData) -> dict[str, Any]:
    return {
        "run_id": data.run_id,
        "execution": data.execution,
        "workflow": data.workflow,
        "version": data.version,
        "seq": data.seq,
        "record_version": data.record_version,
        "status": data.status,
        "result": value_bytes(data.result, "result", MAX_RECORD_BYTES),
        "reason": data.reason or "",
        "about": data.start_id or data.command_id or "",
        "code": data.code or "",
    }


def _failure(error: WireError | None) -> Failure | None:
    """A run's failure may have codes that no attempt has (a run's own timeout), so it is taken as it stands."""
    if error is None:
        return None
    return Failure(
        error.code or "user",
        error.type or "Unknown",
        error.message or "",
        error.retryable is not False,
        error.retry_after_ms,
        value_bytes(error.details, "details", MAX_RECORD_BYTES),
        error.stack,
    )


decode_lifecycle = LifecycleReader().decode
"""For JSON, and for Avro without a registry."""
