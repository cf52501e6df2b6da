"""How long ago, or when: what an option takes, and what it refuses."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

import click
import pytest

from ductor_stream.cli.moments import in_ms, moment

NOW = 1_795_000_000_000
HOUR = 3_600_000


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("30d", NOW - 720 * HOUR),
        ("12h", NOW - 12 * HOUR),
        ("15m", NOW - HOUR // 4),
        ("90s", NOW - 90_000),
        ("2026-11-01", 1_793_491_200_000),
        ("2026-11-01T12:00Z", 1_793_491_200_000 + 12 * HOUR),
        ("2026-11-01T12:00+02:00", 1_793_491_200_000 + 10 * HOUR),
    ],
)
def test_a_moment(text: str, ms: int) -> None:
    assert in_ms(moment(text), NOW) == ms


@pytest.mark.parametrize("text", ["", "30", "30w", "-1d", "1.5d", "yesterday", "2026-13-01", "99999999d"])
def test_what_is_none_is_refused(text: str) -> None:
    with pytest.raises(click.BadParameter, match="neither like 30d"):
        moment(text)


@pytest.mark.parametrize("text", ["9999999d", "9999999h", "0001-01-01T00:00+10:00", "9999-12-31T23:00-10:00"])
def test_a_moment_that_no_calendar_has_is_refused_in_a_line(
    text: str, call: Callable[..., tuple[int, str, str]]
) -> None:
    with pytest.raises(click.BadParameter, match="is too long ago|is outside of the years"):
        moment(text)
    code, _, err = call("purge", "--closed-before", text, "--namespace", "shop")
    assert (code, text in err, "Traceback" in err) == (2, True, False)


def test_the_longest_ago_can_be_told() -> None:
    datetime.fromtimestamp(in_ms(moment("365000d"), NOW) / 1000, UTC)
    with pytest.raises(click.BadParameter):
        moment("365001d")


def test_the_command_says_so(call: Callable[..., tuple[int, str, str]]) -> None:
    code, _, err = call("purge", "--closed-before", "soon", "--namespace", "shop")
    assert code == 2 and "'soon' is neither like 30d" in err
    code, _, err = call("purge", "--namespace", "shop")
    assert code == 2 and "--closed-before" in err
