"""Identities: the fence of an attempt, its idempotency key, and a run's home partition."""

from __future__ import annotations

import hashlib
from struct import unpack

import msgspec

from ductor_stream.errors import InvalidValue

MAX_RUN_ID_BYTES = 512
MAX_NAME_BYTES = 128
"""Limits of the wire contract (docs/wire.md), for what workflow code makes up itself."""

_MASK = 0xFFFFFFFF
_M = 0x5BD1E995


class Fence(msgspec.Struct, frozen=True, array_like=True):
    """Tells one try of one node from all others (R8). All four must be current for a result to count."""

    run_id: str
    execution: int
    node_id: str
    generation: int


def checked(text: str, what: str, limit_bytes: int) -> str:
    """The text, if it can stand in a record and in a database key. Raises InvalidValue that begins with ``what``."""
    try:
        size = len(text.encode())
    except (AttributeError, UnicodeEncodeError):
        raise InvalidValue(f"{what} is {text!r}: it has to be a text of valid characters") from None
    if not 0 < size <= limit_bytes or "\0" in text:
        raise InvalidValue(f"{what} has {size} bytes: use 1 to {limit_bytes} of UTF-8, without U+0000")
    return text


def _escaped(part: str) -> str:
    return part.replace("%", "%25").replace("/", "%2F")


def idempotency_key(namespace: str, run_id: str, execution: int, node_id: str) -> str:
    """The key that a step hands to the outside world (R7): the same on every retry and redrive of one node.

    The parts are joined by ``/``; ``/`` and ``%`` inside a part are escaped, so that the key is unambiguous.
    """
    return f"{_escaped(namespace)}/{_escaped(run_id)}/{execution}/{_escaped(node_id)}"


def child_id(run_id: str, execution: int, node_id: str) -> str:
    """The id of a child whose code gives it none."""
    return _below(run_id, f"{execution}/{node_id}")


def next_id(run_id: str, execution: int) -> str:
    """The id of a child that is started again. The mark tells it from those of the child's own children."""
    return _below(run_id, f"~{execution}")


def _below(run_id: str, rest: str) -> str:
    """An id made from another; where it would be too long for a key, as in deep trees, the other is told by its digest."""
    longer = f"{run_id}/{rest}"
    if len(longer.encode()) <= MAX_RUN_ID_BYTES:
        return longer
    return f"{hashlib.sha256(run_id.encode()).hexdigest()}/{rest}"


def is_next_id(found: str, run_id: str) -> bool:
    """Whether it is ``next_id`` of that run id, in whichever execution."""
    number = found.rpartition("/~")[2]
    return number.isdecimal() and found == next_id(run_id, int(number))


def murmur2(key: bytes) -> int:
    """Unsigned 32-bit MurmurHash2 with the seed that Kafka's Java client uses.

    Source: MurmurHash2 by Austin Appleby (public domain), as in Kafka's ``Utils.murmur2``.
    """
    length = len(key)
    h = 0x9747B28C ^ length
    whole = length & ~3
    for word in unpack(f"<{whole >> 2}I", key[:whole]):
        k = (word * _M) & _MASK
        h = ((h * _M) ^ ((k ^ (k >> 24)) * _M)) & _MASK
    if rest := length & 3:
        h = ((h ^ int.from_bytes(key[whole : whole + rest], "little")) * _M) & _MASK
    h = ((h ^ (h >> 13)) * _M) & _MASK
    return h ^ (h >> 15)


def partition_of(key: bytes, partitions: int) -> int:
    """The partition that Kafka's Java client gives a key: ``toPositive(murmur2(key)) % partitions`` (R12)."""
    return (murmur2(key) & 0x7FFFFFFF) % partitions
