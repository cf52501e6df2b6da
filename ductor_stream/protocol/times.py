"""RFC 3339 times of the wire <-> milliseconds since 1970 UTC of the engine."""

from __future__ import annotations

import functools
from datetime import UTC, datetime, timedelta

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LAST_MS = 253_402_300_799_999  # 9999-12-31T23:59:59.999Z, the last moment with a four-digit year


def rfc3339(ms: int) -> str:
    """``2026-11-01T12:00:00.123Z``. Moments that have no four-digit year are moved to the nearest one that has."""
    seconds, rest = divmod(min(max(ms, 0), _LAST_MS), 1000)
    return f"{_to_the_second(seconds)}.{rest:03d}Z"


@functools.lru_cache(maxsize=256)
def _to_the_second(seconds: int) -> str:
    """A batch of tasks is dispatched within the same second: formatting dates was half of the cost of a task."""
    return (_EPOCH + timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%S")


def milliseconds(text: str) -> int:
    """Milliseconds since 1970 of an RFC 3339 time. Raises ValueError for anything else, or without an offset."""
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        raise ValueError(f"{text[:64]!r} has no offset from UTC")
    return (moment - _EPOCH) // timedelta(milliseconds=1)
