"""Moments as people give them to commands: how long ago, or when."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

import click

_LONGEST = timedelta(days=365_000)
"""Ago: about a thousand years. Ten times as long is before the first day that Python knows."""
_UNITS = {"d": "days", "h": "hours", "m": "minutes", "s": "seconds"}


def moment(text: str) -> timedelta | datetime:
    """``30d``, ``12h``, ``15m``, ``90s`` ago, or a day or time of ISO 8601 (UTC, where it names no zone).

    For an option's ``type``. Raises BadParameter.
    """
    ago = re.fullmatch(r"(\d{1,7})([dhms])", text)
    if ago is not None:
        since = timedelta(**{_UNITS[ago[2]]: int(ago[1])})
        if since > _LONGEST:
            raise click.BadParameter(f"{text} is too long ago: at most {_LONGEST.days}d")
        return since
    try:
        found = datetime.fromisoformat(text)
        found = found.astimezone(UTC) if found.tzinfo is not None else found.replace(tzinfo=UTC)
    except OverflowError:
        raise click.BadParameter(f"{text} is outside of the years 1 to 9999 in UTC") from None
    except ValueError:
        raise click.BadParameter(
            f"{text!r} is neither like 30d, 12h, 15m, 90s nor like 2026-11-01 or 2026-11-01T12:00Z"
        ) from None
    return found


def in_ms(moment: timedelta | datetime, now: int) -> int:
    """The moment in ms since 1970, where it is now ``now``."""
    if isinstance(moment, timedelta):
        return now - round(moment.total_seconds() * 1000)
    return round(moment.timestamp() * 1000)
