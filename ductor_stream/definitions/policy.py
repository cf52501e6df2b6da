"""Options of steps as users write them (seconds, timedelta, Retry), checked and turned into the engine's."""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import msgspec

from ductor_stream.engine.definition import RetryPolicy, StepOptions
from ductor_stream.errors import InvalidDefinition
from ductor_stream.protocol.limits import MAX_DURATION_MS
from ductor_stream.protocol.topics import is_name

_MS_OF = {
    "timeout": "start_to_close_ms",
    "schedule_to_start": "schedule_to_start_ms",
    "schedule_to_close": "schedule_to_close_ms",
    "heartbeat": "heartbeat_ms",
}


class Retry(msgspec.Struct, frozen=True):
    """When a failed attempt is tried again: after ``initial * factor ** (attempt - 1)``, at most ``maximum``.

    ``initial`` and ``maximum`` are timedelta or seconds; ``jitter`` spreads each delay by that share to both
    sides; ``max_attempts`` counts the first try; error types in ``non_retryable`` are never tried again.
    Raises InvalidDefinition for numbers that cannot be.
    """

    max_attempts: int = 10
    initial: timedelta | float = 1
    factor: float = 2
    maximum: timedelta | float = 60
    jitter: float = 0.2
    non_retryable: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.max_attempts, int) or self.max_attempts < 1:
            raise InvalidDefinition(
                f"Retry: max_attempts is {self.max_attempts!r}; it counts the first try, so 1 is the least"
            )
        if not 1 <= self.factor < math.inf:
            raise InvalidDefinition(f"Retry: factor is {self.factor!r}; 1 keeps the delay as it is, more lets it grow")
        if not 0 <= self.jitter <= 1:
            raise InvalidDefinition(f"Retry: jitter is {self.jitter!r}; it is a share from 0 to 1")
        if isinstance(self.non_retryable, str) or not all(isinstance(word, str) for word in self.non_retryable):
            raise InvalidDefinition("Retry: non_retryable takes a tuple of error types by name, like ('CardDeclined',)")
        self.policy()

    def policy(self) -> RetryPolicy:
        """The same as the engine's value, in milliseconds."""
        return RetryPolicy(
            max_attempts=self.max_attempts,
            initial_ms=milliseconds(self.initial, "Retry: initial", least=0),
            factor=float(self.factor),
            maximum_ms=milliseconds(self.maximum, "Retry: maximum", least=0),
            jitter=float(self.jitter),
            non_retryable=tuple(self.non_retryable),
        )


def milliseconds(duration: Any, what: str, least: int = 1) -> int:
    """A timedelta or seconds as whole milliseconds. Raises InvalidDefinition for anything else, below ``least`` or over a century."""
    if isinstance(duration, timedelta):
        seconds: float = duration.total_seconds()
    elif isinstance(duration, (int, float)) and not isinstance(duration, bool) and math.isfinite(duration):
        seconds = duration
    else:
        raise InvalidDefinition(f"{what} is {duration!r}; give a timedelta or seconds")
    if seconds * 1000 > MAX_DURATION_MS:
        raise InvalidDefinition(
            f"{what} is {duration!r}; the longest is a century ({MAX_DURATION_MS // 1000:,} seconds)"
        )
    if (found := round(seconds * 1000)) < least:
        raise InvalidDefinition(f"{what} is {duration!r}; it has to be {'positive' if least else '0 or more'}")
    return found


def valid_name(name: Any, what: str) -> str:
    """The name, unless the wire contract does not allow it: then raises InvalidDefinition."""
    if not isinstance(name, str) or not is_name(name):
        raise InvalidDefinition(f"{what} is {name!r}; a name is 1 to 128 characters of A-Z a-z 0-9 _ . -")
    return name


def changed_options(options: StepOptions, where: str, changes: Mapping[str, Any]) -> StepOptions:
    """The options with changes as users write them. Raises InvalidDefinition, which begins with ``where``."""
    changed: dict[str, Any] = {}
    for key, value in changes.items():
        if key == "queue":
            changed["queue"] = valid_name(value, f"{where}: queue")
        elif key == "retry":
            if not isinstance(value, Retry):
                raise InvalidDefinition(f"{where}: retry is {value!r}; give a Retry(…)")
            changed["retry"] = value.policy()
        elif key in _MS_OF:
            changed[_MS_OF[key]] = _limit(key, value, where)
        else:
            raise InvalidDefinition(f"{where}: unknown option {key!r}{_nearest(key)}")
    return msgspec.structs.replace(options, **changed)


def _limit(key: str, value: Any, where: str) -> int | None:
    if value is not None:
        return milliseconds(value, f"{where}: {key}")
    if key == "timeout":
        raise InvalidDefinition(
            f"{where}: timeout is None; an attempt without one could hang for ever, give a long one"
        )
    return None


def _nearest(key: str) -> str:
    near = difflib.get_close_matches(key, ["queue", "retry", "name", "executor", *_MS_OF], n=1)
    return f" (did you mean {near[0]!r}?)" if near else ""
