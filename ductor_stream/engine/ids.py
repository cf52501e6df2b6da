"""Identities: the fence of an attempt, its idempotency key, and a run's home partition."""

from __future__ import annotations

import msgspec

_MASK = 0xFFFFFFFF
_M = 0x5BD1E995


class Fence(msgspec.Struct, frozen=True, array_like=True):
    """Tells one try of one node from all others (R8). All four must be current for a result to count."""

    run_id: str
    execution: int
    node_id: str
    generation: int


def _escaped(part: str) -> str:
    return part.replace("%", "%25").replace("/", "%2F")


def idempotency_key(namespace: str, run_id: str, execution: int, node_id: str) -> str:
    """The key that a step hands to the outside world (R7): the same on every retry and redrive of one node.

    The parts are joined by ``/``; ``/`` and ``%`` inside a part are escaped, so that the key is unambiguous.
    """
    return f"{_escaped(namespace)}/{_escaped(run_id)}/{execution}/{_escaped(node_id)}"


def murmur2(key: bytes) -> int:
    """Unsigned 32-bit MurmurHash2 with the seed that Kafka's Java client uses.

    Source: MurmurHash2 by Austin Appleby (public domain), as in Kafka's ``Utils.murmur2``.
    """
    length = len(key)
    h = 0x9747B28C ^ length
    whole = length & ~3
    for i in range(0, whole, 4):
        k = (int.from_bytes(key[i : i + 4], "little") * _M) & _MASK
        h = ((h * _M) & _MASK) ^ (((k ^ (k >> 24)) * _M) & _MASK)
    if rest := length & 3:
        h = ((h ^ int.from_bytes(key[whole : whole + rest], "little")) * _M) & _MASK
    h = ((h ^ (h >> 13)) * _M) & _MASK
    return h ^ (h >> 15)


def partition_of(key: bytes, partitions: int) -> int:
    """The partition that Kafka's Java client gives a key: ``toPositive(murmur2(key)) % partitions`` (R12)."""
    return (murmur2(key) & 0x7FFFFFFF) % partitions
