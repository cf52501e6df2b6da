"""What a dead letter refers to when its record is too large for it."""

from __future__ import annotations

from ductor_stream.coordinator.letters import DeadLetters
from ductor_stream.coordinator.work import Work
from ductor_stream.errors import DataError
from ductor_stream.ports import Received
from ductor_stream.protocol.limits import MAX_RECORD_BYTES
from ductor_stream.protocol.outbound import Encoder
from ductor_stream.protocol.topics import Topics
from ductor_stream.telemetry.metrics import Metrics

TOPICS = Topics("shop")


def kept(value: bytes, offset: int = 7) -> tuple[str, bytes]:
    """The row of ``eec_payload`` for a record on this place, whose id the letter has."""
    work = Work()
    received = Received("run-events", 0, offset, b"order-1", value, ())
    DeadLetters(TOPICS, Encoder(TOPICS), Metrics()).add(work, 0, received, DataError("oversized", "too large"))
    [row] = work.payloads
    [letter] = work.outgoing[0]
    assert dict(letter.headers)["ductor-reference"] == row[0].encode()
    return row


def test_a_topic_that_was_re_created_makes_no_reference_twice() -> None:
    """R5b: rows of one id are one, and the second letter would have the bytes of the first."""
    one, other = b"1" * (MAX_RECORD_BYTES + 1), b"2" * (MAX_RECORD_BYTES + 1)
    assert kept(one) == kept(one), "read again after a crash, it is the same row"
    assert kept(one)[0] != kept(other)[0]
    assert kept(one)[0] != kept(one, offset=8)[0]
