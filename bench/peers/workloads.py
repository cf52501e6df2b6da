"""The work that every peer does, run in the driver processes: the measures (a) to (e) of bench/README.md."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Protocol

from bench.peers.common import TIMER_LOG
from bench.peers.options import Options

_FIRED_WITHIN_S = 300.0
_LOOK_EVERY_S = 0.5


class Driving(Protocol):
    """What a peer's driver does. All but ``timer`` return once the workflow has durably ended."""

    async def chain(self, steps: int) -> None:
        """A workflow of so many steps in sequence."""

    async def fanout(self, steps: int) -> None:
        """A workflow of so many steps at once, and a join."""

    async def timer(self, started: float, seconds: float) -> None:
        """Start a workflow that sleeps so long, and tells ``log_lateness`` when it ends."""

    async def long(self, steps: int) -> dict[str, float]:
        """A workflow of so many steps in sequence; returns its ``edges``."""
        ...


async def closed_loop(
    call: Callable[[], Awaitable[object]], in_flight: int, *, count: int = 0, seconds: float = 0.0
) -> list[float]:
    """Keep so many calls going until ``count`` calls or ``seconds`` are used up; the seconds that each took."""
    took: list[float] = []
    deadline = time.perf_counter() + seconds
    started = 0

    async def lane() -> None:
        nonlocal started
        while started < count if count else time.perf_counter() < deadline:
            started += 1
            began = time.perf_counter()
            await call()
            took.append(time.perf_counter() - began)

    await asyncio.gather(*(lane() for _ in range(in_flight)))
    return took


async def chains(driver: Driving, options: Options) -> dict[str, Any]:
    """(a) Chains of ten steps at saturation."""
    return {"latencies": await closed_loop(lambda: driver.chain(10), options.inflight, seconds=options.seconds)}


async def serial(driver: Driving, options: Options) -> dict[str, Any]:
    """(b) The same, one at a time."""
    return {"latencies": await closed_loop(lambda: driver.chain(10), 1, count=options.serial)}


async def fanout(driver: Driving, options: Options) -> dict[str, Any]:
    """(c) One workflow of many parallel steps and a join."""
    began = time.perf_counter()
    await driver.fanout(options.fanout)
    return {"steps_per_s": options.fanout / (time.perf_counter() - began)}


async def timers(driver: Driving, options: Options) -> dict[str, Any]:
    """(d) Workflows that sleep, all started at once. Their lateness holds the delay of their start too."""
    count, began = options.timers // options.drivers, time.time()
    limit = asyncio.Semaphore(options.inflight)

    async def one() -> None:
        async with limit:
            await driver.timer(began, options.sleep)

    await asyncio.gather(*(one() for _ in range(count)))
    started_s = time.time() - began
    log, total = Path(os.environ[TIMER_LOG]), count * options.drivers
    while log.read_text().count("\n") < total:
        if time.time() - began > _FIRED_WITHIN_S:
            raise TimeoutError(f"{log.read_text().count(chr(10))} of {total} timers have fired")
        await asyncio.sleep(_LOOK_EVERY_S)
    return {"start_seconds": started_s}


async def long(driver: Driving, options: Options) -> dict[str, Any]:
    """(e) One workflow of many steps in sequence."""
    return await driver.long(options.long)


WORKLOADS: dict[str, Callable[[Any, Options], Awaitable[dict[str, Any]]]] = {
    "chains": chains,
    "serial": serial,
    "fanout": fanout,
    "timers": timers,
    "long": long,
}
