"""Workflows drawn at random from all that asyncio offers to combine awaits with."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from random import Random
from typing import Any

from unit.stepped_loop import SteppedLoop

Part = Coroutine[Any, Any, Any]


async def run_random(loop: SteppedLoop, draw: Random, depth: int) -> Any:
    """Await something drawn by ``draw``, at most ``depth`` combinations deep."""
    if depth == 0:
        return await (asyncio.sleep(draw.randrange(3)) if draw.random() < 0.3 else loop.node())

    def part() -> Part:
        return run_random(loop, draw, depth - 1)

    return await draw.choice(COMBINATIONS)(draw, part)


def several(draw: Random, part: Callable[[], Part]) -> list[Part]:
    return [part() for _ in range(draw.randrange(1, 4))]


async def gathered(draw: Random, part: Callable[[], Part]) -> None:
    await asyncio.gather(*several(draw, part), return_exceptions=draw.random() < 0.5)


async def grouped(draw: Random, part: Callable[[], Part]) -> None:
    async with asyncio.TaskGroup() as group:
        for each in several(draw, part):
            group.create_task(each)
        await part()


async def in_time(draw: Random, part: Callable[[], Part]) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(draw.randrange(4)):
            await part()


async def waited_for(draw: Random, part: Callable[[], Part]) -> None:
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(part(), draw.randrange(4))


async def shielded(draw: Random, part: Callable[[], Part]) -> None:
    await asyncio.shield(part())


async def cleaned_up(draw: Random, part: Callable[[], Part]) -> None:
    try:
        await part()
    finally:
        await part()


async def caught(draw: Random, part: Callable[[], Part]) -> None:
    try:
        await part()
    except BaseException:
        await part()
        raise


async def one_after_another(draw: Random, part: Callable[[], Part]) -> None:
    parts = several(draw, part)
    try:
        for each in parts:
            await each
    except asyncio.CancelledError:
        for each in parts:
            each.close()  # else Python warns, rightly: they were forgotten
        raise


async def raced(draw: Random, part: Callable[[], Part]) -> None:
    tasks = [asyncio.create_task(each) for each in several(draw, part)]
    _, late = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for each in late:
        each.cancel()


async def as_they_complete(draw: Random, part: Callable[[], Part]) -> None:
    await asyncio.gather(*asyncio.as_completed(several(draw, part)))


async def generated(draw: Random, part: Callable[[], Part]) -> None:
    async def pages():
        try:
            for _ in range(3):
                yield await part()
        finally:
            await part()

    async for _ in pages():
        if draw.random() < 0.3:
            break


COMBINATIONS = [
    gathered,
    grouped,
    in_time,
    waited_for,
    shielded,
    cleaned_up,
    caught,
    one_after_another,
    raced,
    as_they_complete,
    generated,
]
