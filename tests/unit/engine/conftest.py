"""No coroutine of a test is left to the garbage collector."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from unit.engine.driver import abandoning


@pytest.fixture(autouse=True)
def _coroutines_are_dropped() -> Iterator[None]:
    with abandoning():
        yield
