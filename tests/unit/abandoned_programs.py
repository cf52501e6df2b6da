"""Workflows that are each dropped in a state that is awkward to leave."""

from __future__ import annotations

import asyncio

from unit.stepped_loop import SteppedLoop

SEEN: list[str] = []
"""What programs say about themselves. Nothing that starts with "never" may be said."""


async def nothing() -> None:
    """A coroutine that some of the programs never start."""


async def awaits_in_finally(loop: SteppedLoop) -> None:
    try:
        await loop.node()
    finally:
        SEEN.append("finally")
        await loop.node()
        SEEN.append("never: after an await in finally")


async def awaits_in_the_finally_of_what_it_awaits(loop: SteppedLoop) -> None:
    async def inner() -> None:
        try:
            await awaits_in_finally(loop)
        finally:
            await asyncio.sleep(1)

    try:
        await inner()
    finally:
        await asyncio.shield(loop.node())


async def awaits_what_exists_in_finally(loop: SteppedLoop) -> None:
    first, second = loop.create_future(), loop.create_future()

    async def inner() -> None:
        try:
            await loop.node()
        finally:
            try:
                await first
            finally:
                await second

    try:
        await inner()
    except RuntimeError:
        SEEN.append("never: that inner() will not end is not its caller's to hear")


async def awaits_anew_what_awaits_again_in_finally(loop: SteppedLoop) -> None:
    async def inner() -> None:
        try:
            await loop.node()
        finally:
            try:
                await asyncio.sleep(0)  # needs no loop: a dropped one cannot refuse it
            finally:
                await asyncio.sleep(0)
                SEEN.append("never: after an await in finally")

    try:
        await inner()
    finally:
        try:
            await inner()
        except RuntimeError:
            SEEN.append("never: that inner() will not end is not its caller's to hear")


async def raises_in_finally(loop: SteppedLoop) -> None:
    try:
        await loop.node()
    finally:
        raise SystemExit(1)


async def holds_coroutines_not_started(loop: SteppedLoop) -> None:
    held = [nothing(), nothing()]
    await asyncio.gather(loop.node(), nothing(), loop.node())
    await asyncio.gather(*held)


async def holds_one_on_the_stack(loop: SteppedLoop) -> None:
    await asyncio.gather(nothing(), await loop.node())


async def holds_one_in_a_cycle(loop: SteppedLoop) -> None:
    errors, held = [], nothing()
    try:
        raise ValueError
    except ValueError as error:
        errors.append(error)  # error → traceback → this frame → errors
    await loop.node()
    await held


async def holds_one_in_a_cycle_further_out(loop: SteppedLoop) -> None:
    errors, held = [], nothing()
    try:
        raise ValueError
    except ValueError as error:
        errors.append(error)
    await holds_one_in_a_cycle(loop)
    await held


async def is_in_a_group(loop: SteppedLoop) -> None:
    async with asyncio.TaskGroup() as group, asyncio.timeout(10):
        group.create_task(awaits_in_finally(loop))
        group.create_task(asyncio.sleep(5))
        await loop.node()


async def is_in_an_async_generator(loop: SteppedLoop) -> None:
    async def pages():
        try:
            while True:
                await awaits_in_finally(loop)
                yield 1
        finally:
            await loop.node()

    async for _ in pages():
        pass


async def is_in_a_generator_that_is_awaited(loop: SteppedLoop) -> None:
    class Generated:
        def __await__(self):
            try:
                yield from loop.create_future()
            finally:
                yield from asyncio.sleep(0).__await__()
                SEEN.append("never: after an await in finally")

    try:
        await Generated()
    except RuntimeError:
        SEEN.append("never: that it will not end is not its caller's to hear")


async def is_in_what_hides_what_it_awaits(loop: SteppedLoop) -> None:
    class Hidden:
        def __await__(self):
            return awaits_anew_what_awaits_again_in_finally(loop).__await__()

    async def pages():
        try:
            yield await Hidden()
        except BaseException:  # noqa: BLE001 - also the GeneratorExit of being dropped
            await asyncio.wait_for(Hidden(), 1)  # refused: holds a coroutine that was not started
        finally:
            await Hidden()

    await anext(pages(), None)


async def left_an_async_generator(loop: SteppedLoop) -> None:
    async def pages():
        try:
            yield 1
        finally:
            SEEN.append("never: it is freed where it stands")

    async for _ in pages():
        break
    held = pages()
    await anext(held)
    await loop.node()
    await anext(held)


async def uses_locks_and_queues(loop: SteppedLoop) -> None:
    queue: asyncio.Queue[int] = asyncio.Queue()
    lock, condition = asyncio.Lock(), asyncio.Condition()

    async def waits() -> None:
        async with lock, condition:
            await asyncio.wait_for(queue.get(), timeout=30)

    await asyncio.wait([asyncio.create_task(waits()) for _ in range(3)])


async def has_a_task_not_started(loop: SteppedLoop) -> None:
    loop.call_soon(lambda: asyncio.create_task(nothing()))
    await loop.node()


async def failed_unseen(loop: SteppedLoop) -> None:
    async def fail() -> None:
        raise ValueError

    asyncio.create_task(fail())
    await loop.node()


SUSPENDED = [
    awaits_in_finally,
    awaits_in_the_finally_of_what_it_awaits,
    awaits_what_exists_in_finally,
    awaits_anew_what_awaits_again_in_finally,
    raises_in_finally,
    holds_coroutines_not_started,
    holds_one_on_the_stack,
    holds_one_in_a_cycle,
    holds_one_in_a_cycle_further_out,
    is_in_a_group,
    is_in_an_async_generator,
    is_in_a_generator_that_is_awaited,
    is_in_what_hides_what_it_awaits,
    left_an_async_generator,
    uses_locks_and_queues,
    has_a_task_not_started,
    failed_unseen,
]
