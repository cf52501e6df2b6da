"""The client's side: starts, signals and commands out, lifecycle events in."""

from __future__ import annotations

from msgspec import Raw

from ductor_stream.engine.events import CommandReceived, RunStarted, SignalReceived
from ductor_stream.errors import DataError, InvalidValue, PayloadTooLarge
from ductor_stream.ports import Outgoing
from ductor_stream.protocol import headers, json_text, messages
from ductor_stream.protocol.failures import clean
from ductor_stream.protocol.limits import (
    MAX_DURATION_MS,
    MAX_ID_BYTES,
    MAX_NAME,
    MAX_NUMBER,
    MAX_PAYLOAD_BYTES,
    MAX_REASON,
    MAX_RUN_ID_BYTES,
    MAX_VALUE_NESTING,
)
from ductor_stream.protocol.registry import SchemaRegistry
from ductor_stream.protocol.topics import Topics, is_name
from ductor_stream.protocol.writing import Format, Writer

Request = RunStarted | SignalReceived | CommandReceived


class RequestEncoder:
    """Encodes what a client asks of a run. What the coordinator would refuse is refused here, where somebody hears it.

    Raises InvalidConfig for a format that needs a registry where there is none.
    """

    def __init__(self, topics: Topics, *, format: Format = "json", registry: SchemaRegistry | None = None) -> None:
        self._topic = topics.run_events
        self._writer = Writer(format, registry)

    def encode(self, run_id: str, request: Request) -> Outgoing:
        """A record for ``run-events``. An empty id is left out (the record's position takes its place), an empty
        version too. Of a start's context only what the contract carries along is sent.

        Raises InvalidValue for what is outside the contract, PayloadTooLarge; TransientError while a registry is away.
        """
        key = _id("run id", run_id, MAX_RUN_ID_BYTES).encode()
        value = self._writer.write(_message(run_id, request))
        return Outgoing(self._topic, key, value, headers.wire_headers(_context(request)))


def _message(run_id: str, request: Request) -> messages.WireMessage:
    match request:
        case RunStarted():
            return _start(run_id, request)
        case SignalReceived():
            return messages.RunSignal(
                run_id=run_id,
                signal_id=_optional_id("signal_id", request.signal_id),
                name=_name("signal", request.name),
                payload=_payload("payload", request.payload),
            )
        case CommandReceived():
            return _command(run_id, request)


def _start(run_id: str, start: RunStarted) -> messages.RunStart:
    if start.on_conflict != "use_existing" and not start.start_id:
        raise InvalidValue(
            f"on_conflict={start.on_conflict!r} needs a start_id: without one a repeat would start again"
        )
    if start.run_timeout_ms is not None and not 0 <= start.run_timeout_ms <= MAX_DURATION_MS:
        raise InvalidValue(f"run_timeout_ms: use 0 to {MAX_DURATION_MS}")
    return messages.RunStart(
        run_id=run_id,
        workflow=_name("workflow", start.workflow),
        input=_payload("input", start.input),
        start_id=_optional_id("start_id", start.start_id),
        version=_name("version", start.version) if start.version else None,
        on_conflict=None if start.on_conflict == "use_existing" else start.on_conflict,
        run_timeout_ms=start.run_timeout_ms,
    )


def _command(run_id: str, command: CommandReceived) -> messages.Command:
    struct = _COMMANDS[command.kind]
    message = struct(
        run_id=run_id,
        command_id=_optional_id("command_id", command.command_id),
        reason=clean(command.reason, MAX_REASON) or None,
        **(_target(command) if command.kind == "reset" else {}),
    )
    return message


def _target(command: CommandReceived) -> dict[str, object]:
    """Where a reset goes back to: the one or the other."""
    if command.to_transition is None:
        return {"to_node": _id("to_node", command.to_node or "", MAX_ID_BYTES)}
    if command.to_node is not None:
        raise InvalidValue("to_node, to_transition: use one of them")
    if not 1 <= command.to_transition <= MAX_NUMBER:
        raise InvalidValue(f"to_transition: use 1 to {MAX_NUMBER}")
    return {"to_transition": command.to_transition}


def _id(field: str, text: str, limit: int) -> str:
    try:
        size = len(text.encode())
    except UnicodeEncodeError as error:
        raise InvalidValue(f"{field}: {error}") from None
    if not 0 < size <= limit or "\0" in text:
        raise InvalidValue(f"{field}: use 1 to {limit} bytes of UTF-8 without U+0000 (it has {size})")
    return text


def _optional_id(field: str, text: str) -> str | None:
    return _id(field, text, MAX_ID_BYTES) if text else None


def _name(field: str, text: str) -> str:
    if not is_name(text):
        raise InvalidValue(f"{field} {text[:200]!r}: use 1 to {MAX_NAME} characters of [A-Za-z0-9_.-]")
    return text


def _payload(field: str, value: bytes) -> Raw:
    if len(value) > MAX_PAYLOAD_BYTES:
        raise PayloadTooLarge(f"{field} has {len(value):,} bytes as JSON, {MAX_PAYLOAD_BYTES:,} are the limit")
    try:
        return json_text.document(value or b"null", MAX_VALUE_NESTING)
    except ValueError as error:
        raise InvalidValue(f"{field} is not one JSON document: {error}") from None


def _context(request: Request) -> dict[str, str]:
    if not isinstance(request, RunStarted):
        return {}
    try:
        return headers.context_of([(name, value.encode()) for name, value in request.context.items()])
    except (DataError, UnicodeEncodeError) as error:
        raise InvalidValue(str(error)) from None


_COMMANDS: dict[str, type[messages.Command]] = {
    messages.type_of(struct).removeprefix("run."): struct for struct in messages.COMMANDS
}
