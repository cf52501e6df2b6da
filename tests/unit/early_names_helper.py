"""A module of a user's that takes functions of asyncio by name, and is not the one that declares workflows."""

from __future__ import annotations

from asyncio import as_completed, wait_for
from collections.abc import Coroutine, Iterable
from typing import Any


async def as_they_come(branches: Iterable[Coroutine[Any, Any, int]]) -> list[int]:
    """The results of the branches, in the order in which they come."""
    return [await wait_for(finished, 3_600) for finished in as_completed(list(branches))]
