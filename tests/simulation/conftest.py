"""Storms are loud, and bugs leave things behind: neither is any other test's affair."""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import Iterator

import pytest

from ductor_stream.engine.planners.loop import WorkflowLoop


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """No log lines of the product while a test simulates."""
    logger = logging.getLogger("ductor_stream")
    before = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    yield
    logger.setLevel(before)


@pytest.fixture(autouse=True)
def nothing_is_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """No coroutine is left to the garbage collector, which would run its ``finally:`` in some other test.

    A deliberate bug may leave some. Without an event loop of the thread (``get_event_loop`` makes one, once), what they
    begin when they are freed ends at once.
    """
    asyncio.set_event_loop(None)
    yield
    left = [each for each in gc.get_objects() if type(each) is WorkflowLoop and each.live_tasks()]
    if request.node.get_closest_marker("filterwarnings"):
        for loop in left:
            loop.abandon()
        gc.collect()
    else:
        assert not left
