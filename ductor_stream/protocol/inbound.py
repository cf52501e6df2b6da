"""Records of the inbound topics -> what the coordinator applies. Raises DataError for what never can be applied."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from ductor_stream.engine.events import AnyEvent, AttemptFinished, CommandReceived, Failure, RunStarted, SignalReceived
from ductor_stream.errors import DataError
from ductor_stream.ports import INBOUND, Inbound, Received
from ductor_stream.protocol import headers, messages
from ductor_stream.protocol.failures import clean, failure_of, value_bytes
from ductor_stream.protocol.limits import (
    MAX_DETAILS_BYTES,
    MAX_ID_BYTES,
    MAX_PAYLOAD_BYTES,
    MAX_REASON,
    MAX_RUN_ID_BYTES,
    MAX_WORKER,
)
from ductor_stream.protocol.reading import Reader
from ductor_stream.protocol.registry import SchemaRegistry
from ductor_stream.protocol.topics import Topics


class ForRun(msgspec.Struct, frozen=True):
    """An event for a run. ``dedupe`` is (kind, id) to look up before it is applied, kind ``start``, ``signal`` or
    ``command``; None for what is deduplicated by itself (results by their fence, starts that use what exists)."""

    run_id: str
    dedupe: tuple[str, str] | None
    event: AnyEvent


class Beat(msgspec.Struct, frozen=True):
    """A heartbeat of an attempt; ``details`` is JSON."""

    run_id: str
    execution: int
    node_id: str
    generation: int
    worker: str
    details: bytes | None


class WakeupHint(msgspec.Struct, frozen=True):
    """Something for this run is in the inbox of its partition."""

    run_id: str


Message = ForRun | Beat | WakeupHint


def record_identity(topic_id: str, partition: int, offset: int) -> str:
    """Names a record for ever: a re-created topic of the same name has another id."""
    return f"{topic_id}/{partition}/{offset}"


def run_id_of(key: bytes | None) -> str:
    """The run id that a record's key is. Raises DataError ``null_key`` or ``bad_key``."""
    if key is None:
        raise DataError("null_key", "the record has no key: it must be the run id")
    if not 0 < len(key) <= MAX_RUN_ID_BYTES:
        raise DataError("bad_key", f"the key has {len(key)} bytes, a run id has 1 to {MAX_RUN_ID_BYTES}")
    try:
        run_id = key.decode()
    except UnicodeDecodeError as error:
        raise DataError("bad_key", f"the key is no UTF-8: {error}") from None
    if "\0" in run_id:
        raise DataError("bad_key", "the key contains U+0000")
    return run_id


class InboundDecoder:
    """Decodes the records of a namespace's inbound topics. Not thread-safe.

    ``registry`` is needed for records in Confluent's format; without one they are ``unknown_schema``.
    """

    def __init__(self, topics: Topics, registry: SchemaRegistry | None = None) -> None:
        self._readers: dict[Inbound, Reader] = {
            short: Reader(topics.inbound(short), messages.BY_TOPIC[short], registry) for short in INBOUND
        }

    def decode(self, received: Received, topic_id: str) -> Message:
        """What a record means. ``topic_id`` is Kafka's id of its topic; it goes into ids that the record lacks.

        Raises DataError (its reasons are ``vocabulary.REASONS``); TransientError when a registry cannot be asked.
        """
        run_id = run_id_of(received.key)
        if received.value is None:
            raise DataError("tombstone", "the record has no value; nothing can be deleted this way")
        if received.headers:
            headers.check_wire(received.headers)
        wire = self._readers[received.topic].read(received.value)
        if wire.run_id is not None and wire.run_id != run_id:
            raise DataError("run_id_mismatch", f"the key is {run_id[:100]!r}, the body says {wire.run_id[:100]!r}")
        return _APPLY[type(wire)](wire, run_id, received, topic_id)


def _start(wire: messages.RunStart, run_id: str, received: Received, topic_id: str) -> Message:
    on_conflict = wire.on_conflict or "use_existing"
    if wire.start_id is None and on_conflict != "use_existing":
        raise DataError("invalid_field", f"run.start: on_conflict {on_conflict} requires a start_id")
    for field, value in (("memo", bytes(wire.memo)), ("search", bytes(wire.search))):
        if value and value != b"null" and not value.startswith(b"{"):
            raise DataError("invalid_field", f"run.start: {field} is not an object")
        value_bytes(msgspec.Raw(value), field)
    start_id = _given("start_id", wire.start_id) or _position(received, topic_id)
    event = RunStarted(
        workflow=wire.workflow,
        version=wire.version or "",
        input=value_bytes(wire.input, "input") or b"null",
        start_id=start_id,
        on_conflict=on_conflict,
        run_timeout_ms=wire.run_timeout_ms,
        context=headers.context_of(received.headers),
    )
    return ForRun(run_id, None if on_conflict == "use_existing" else ("start", start_id), event)


def _signal(wire: messages.RunSignal, run_id: str, received: Received, topic_id: str) -> Message:
    signal_id = _given("signal_id", wire.signal_id) or _position(received, topic_id)
    payload = value_bytes(wire.payload, "payload") or b"null"
    return ForRun(run_id, ("signal", signal_id), SignalReceived(signal_id, wire.name, payload))


def _command(wire: messages.Command, run_id: str, received: Received, topic_id: str) -> Message:
    command_id = _given("command_id", wire.command_id) or _position(received, topic_id)
    event = CommandReceived(_KINDS[type(wire)], command_id, clean(wire.reason, MAX_REASON))
    if isinstance(wire, messages.RunReset):
        if (wire.to_node is None) == (wire.to_transition is None):
            raise DataError("invalid_field", "run.reset: either to_node or to_transition")
        to_node = _given("to_node", wire.to_node)
        event = msgspec.structs.replace(event, to_node=to_node, to_transition=wire.to_transition)
    return ForRun(run_id, ("command", command_id), event)


def _finished(wire: messages.AttemptFinished, run_id: str, received: Received, topic_id: str) -> Message:
    completed = wire.outcome == "completed"
    if completed and len(bytes(wire.output)) > MAX_PAYLOAD_BYTES:
        # Its run must not wait for a result that was set aside: the attempt has failed, and says why.
        return ForRun(run_id, None, _too_large(wire))
    event = AttemptFinished(
        wire.execution,
        _required("node_id", wire.node_id),
        wire.generation,
        wire.outcome,
        value_bytes(wire.output, "output") if completed else None,
        None if completed else failure_of(wire.error, wire.outcome),
        clean(wire.worker, MAX_WORKER),
        clean(wire.started_at, MAX_WORKER),
        clean(wire.finished_at, MAX_WORKER),
    )
    return ForRun(run_id, None, event)


def _too_large(wire: messages.AttemptFinished) -> AttemptFinished:
    message = f"the output has {len(bytes(wire.output)):,} bytes, {MAX_PAYLOAD_BYTES:,} are the limit"
    failure = Failure("output_too_large", "OutputTooLarge", message, retryable=False)
    node_id, worker = _required("node_id", wire.node_id), clean(wire.worker, MAX_WORKER)
    return AttemptFinished(wire.execution, node_id, wire.generation, "failed", None, failure, worker)


def _heartbeat(wire: messages.AttemptHeartbeat, run_id: str, received: Received, topic_id: str) -> Message:
    details = value_bytes(wire.details, "details", MAX_DETAILS_BYTES)
    node_id = _required("node_id", wire.node_id)
    return Beat(run_id, wire.execution, node_id, wire.generation, clean(wire.worker, MAX_WORKER), details)


def _wakeup(wire: messages.Wakeup, run_id: str, received: Received, topic_id: str) -> Message:
    return WakeupHint(run_id)


def _required(field: str, text: str) -> str:
    """An id that fits a database key: its length is one of bytes, and U+0000 is no text."""
    if "\0" in text or (not text.isascii() and len(text.encode()) > MAX_ID_BYTES):
        raise DataError("invalid_field", f"{field}: use at most {MAX_ID_BYTES} bytes of UTF-8 without U+0000")
    return text


def _given(field: str, text: str | None) -> str | None:
    return None if text is None else _required(field, text)


def _position(received: Received, topic_id: str) -> str:
    return record_identity(topic_id, received.partition, received.offset)


_KINDS: dict[type[messages.Command], Any] = {
    messages.RunCancel: "cancel",
    messages.RunTerminate: "terminate",
    messages.RunPause: "pause",
    messages.RunResume: "resume",
    messages.RunRetry: "retry",
    messages.RunReset: "reset",
}
_APPLY: dict[type[messages.WireMessage], Callable[[Any, str, Received, str], Message]] = {
    messages.RunStart: _start,
    messages.RunSignal: _signal,
    **{command: _command for command in messages.COMMANDS},
    messages.AttemptFinished: _finished,
    messages.AttemptHeartbeat: _heartbeat,
    messages.Wakeup: _wakeup,
}
