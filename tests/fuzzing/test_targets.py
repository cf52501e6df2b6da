"""No decoder raises anything but what it says it does, on whatever bytes; and what a fuzzer once found stays right."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fuzzing.targets import TARGETS, seeds

FOUND = Path(__file__).parent / "found"


def hostile(name: str) -> st.SearchStrategy[bytes]:
    """Any bytes, and what this release writes with some bytes changed or put in."""
    return st.binary(max_size=300) | st.builds(
        lambda value, at, gone, change: value[:at] + change + value[at + gone :],
        st.sampled_from(seeds(name)), st.integers(0, 400), st.integers(0, 4), st.binary(max_size=6),
    )  # fmt: skip


@pytest.mark.parametrize("name", sorted(TARGETS))
def test_no_bytes_break_a_decoder(name: str) -> None:
    @settings(deadline=None, max_examples=400, suppress_health_check=list(HealthCheck), database=None)
    @given(hostile(name))
    def check(data: bytes) -> None:
        TARGETS[name](data)

    check()


def test_what_was_found_once_is_right() -> None:
    for path in sorted(FOUND.glob("*-*")):
        TARGETS[path.name.partition("-")[0]](path.read_bytes())
