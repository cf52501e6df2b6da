"""Storms are loud: nobody reads what the coordinator logs in them."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """No log lines of the product while a test simulates."""
    logger = logging.getLogger("ductor_stream")
    before = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    yield
    logger.setLevel(before)
