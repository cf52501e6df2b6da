"""Records that wait in ``eec_inbox``, as they were received, in MessagePack."""

from __future__ import annotations

import msgspec

from ductor_stream.engine.events import AnyEvent
from ductor_stream.ports import Outgoing, Received

_encoder = msgspec.msgpack.Encoder()
_received = msgspec.msgpack.Decoder(Received)
_event = msgspec.msgpack.Decoder(tuple[str, AnyEvent])
_about = msgspec.msgpack.Decoder(tuple[str, msgspec.Raw])
_outgoing = msgspec.msgpack.Decoder(Outgoing)


def encode_received(received: Received) -> bytes:
    """The body of an inbox row of kind ``event``."""
    return _encoder.encode(received)


def decode_received(body: bytes) -> Received:
    """The record in the body of an inbox row of kind ``event``."""
    return _received.decode(body)


def encode_event(run_id: str, event: AnyEvent) -> bytes:
    """The body of an inbox row of kind ``engine``: what one run has for another."""
    return _encoder.encode((run_id, event))


def decode_event(body: bytes) -> tuple[str, AnyEvent] | None:
    """The run id and the event in the body of an inbox row of kind ``engine``; None for one that a newer release wrote."""
    try:
        return _event.decode(body)
    except msgspec.ValidationError:
        return None


def run_of_event(body: bytes) -> str:
    """The run id in the body of an inbox row of kind ``engine``, whichever release wrote it."""
    return _about.decode(body)[0]


def run_of_row(kind: str, body: bytes) -> str:
    """The run that an inbox row of kind ``event`` or ``engine`` is for, without reading what it says."""
    return run_of_event(body) if kind == "engine" else (decode_received(body).key or b"").decode("utf-8", "replace")


def encode_outgoing(record: Outgoing) -> bytes:
    """The body of an inbox row of kind ``produce``."""
    return _encoder.encode(record)


def decode_outgoing(body: bytes) -> Outgoing:
    """The record in the body of an inbox row of kind ``produce``."""
    return _outgoing.decode(body)
