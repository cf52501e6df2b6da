"""The pytest fixture ``ductor_env``: makes test environments and closes them after the test.

``async def test_it(ductor_env): env = await ductor_env(app)`` (with any plugin that runs async tests).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from ductor_stream.app import App
    from ductor_stream.testing.env import TestEnv


@pytest.fixture
def ductor_env() -> Iterator[Callable[[App], Awaitable[TestEnv]]]:
    """A function that gives a ``TestEnv`` for an app; all of them are closed after the test."""
    opened: list[TestEnv] = []

    async def make(app: App) -> TestEnv:
        # Here and not above: pytest loads this module in every project where the package is installed.
        from ductor_stream.testing.env import TestEnv

        env = await TestEnv(app).__aenter__()
        opened.append(env)
        return env

    yield make

    async def close() -> None:
        for env in opened:
            await env.__aexit__()

    if opened:
        asyncio.run(close())
