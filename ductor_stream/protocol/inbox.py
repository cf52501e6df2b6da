"""Records that wait in ``eec_inbox``, as they were received, in MessagePack."""

from __future__ import annotations

import msgspec

from ductor_stream.engine.events import AnyEvent
from ductor_stream.ports import Outgoing, Received

_encoder = msgspec.msgpack.Encoder()
_received = msgspec.msgpack.Decoder(Received)
_event = msgspec.msgpack.Decoder(tuple[str, AnyEvent])
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


def decode_event(body: bytes) -> tuple[str, AnyEvent]:
    """The run id and the event in the body of an inbox row of kind ``engine``."""
    return _event.decode(body)


def encode_outgoing(record: Outgoing) -> bytes:
    """The body of an inbox row of kind ``produce``."""
    return _encoder.encode(record)


def decode_outgoing(body: bytes) -> Outgoing:
    """The record in the body of an inbox row of kind ``produce``."""
    return _outgoing.decode(body)
