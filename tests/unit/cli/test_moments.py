"""How long ago, or when: what an option takes, and what it refuses."""

from __future__ import annotations

from collections.abc import Callable

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


def test_the_command_says_so(call: Callable[..., tuple[int, str, str]]) -> None:
    code, _, err = call("purge", "--closed-before", "soon", "--namespace", "shop")
    assert code == 2 and "'soon' is neither like 30d" in err
    code, _, err = call("purge", "--namespace", "shop")
    assert code == 2 and "--closed-before" in err
