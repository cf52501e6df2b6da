"""No decoder raises anything but what it says it does, on whatever bytes; and what a fuzzer once found stays right."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from wire_cases import records

from fuzzing.targets import TARGETS

FOUND = Path(__file__).parent / "found"
VALUES = sorted({record.value for _, record in records()})
HOSTILE = st.binary(max_size=300) | st.builds(
    lambda key, value, at, change: bytes([key % 24]) + b"k" * (key % 24) + b"\1" + value[:at] + change + value[at:],
    st.integers(0, 255),
    st.sampled_from(VALUES),
    st.integers(0, 400),
    st.binary(max_size=6),
)


@pytest.mark.parametrize("name", sorted(TARGETS))
def test_no_bytes_break_a_decoder(name: str) -> None:
    @settings(deadline=None, max_examples=400, suppress_health_check=list(HealthCheck), database=None)
    @given(HOSTILE)
    def check(data: bytes) -> None:
        TARGETS[name](data)

    check()


def test_what_was_found_once_is_right() -> None:
    for path in sorted(FOUND.glob("*-*")):
        TARGETS[path.name.partition("-")[0]](path.read_bytes())
