"""What a step raises, as the wire carries it."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import msgspec
import pytest

from ductor_stream import RetryableError
from ductor_stream.protocol.failures import wire_error
from ductor_stream.protocol.limits import MAX_DURATION_MS
from ductor_stream.protocol.messages import WireError
from ductor_stream.worker.outcomes import raised


@pytest.mark.parametrize(
    ("retry_after", "expected"),
    [
        (1.5, 1_500),
        (0.0001, 1),
        (timedelta(hours=1), 3_600_000),
        (-5, 0),
        (-1e308, 0),
        (MAX_DURATION_MS / 1000, MAX_DURATION_MS),
        (1.76e12, MAX_DURATION_MS),  # a moment where a delay was meant
        (1e308, MAX_DURATION_MS),
        pytest.param(10**400, MAX_DURATION_MS, id="no float"),
        (timedelta.max, MAX_DURATION_MS),
        (float("inf"), None),
        (float("nan"), None),
        (None, None),
    ],
)
def test_when_to_try_again_is_a_duration_that_every_coordinator_takes(retry_after: Any, expected: int | None) -> None:
    """A result that said more would be refused, and lost with the error that it tells of."""
    outcome = raised(RetryableError("later", retry_after=retry_after))
    assert outcome.failure is not None
    told = wire_error(outcome.failure)
    assert msgspec.json.decode(msgspec.json.encode(told), type=WireError).retry_after_ms == expected
