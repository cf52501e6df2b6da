# mypy: disable-error-code="import-not-found, untyped-decorator"
# (the peer is installed in an environment of its own)
"""DBOS on Postgres, with its defaults.

The drivers embed it, as its users do: they call the workflow, whose steps run in the same process.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

from dbos import DBOS

from bench.peers.common import Place, edges, log_lateness, server, step_result
from bench.peers.options import Options


@DBOS.step()
def step(number: int) -> dict[str, Any]:
    """The no-op."""
    return step_result(number)


@DBOS.step()
async def async_step(number: int) -> dict[str, Any]:
    """The no-op, for the fan-out."""
    return step_result(number)


@DBOS.workflow()
def chain(steps: int) -> int:
    """So many steps in sequence."""
    for number in range(steps):
        step(number)
    return steps


@DBOS.workflow()
async def fanout(steps: int) -> int:
    """So many steps at once."""
    return len(await asyncio.gather(*(async_step(number) for number in range(steps))))


@DBOS.workflow()
async def timer(started: float, seconds: float) -> None:
    """Sleep, then tell how late it is."""
    await DBOS.sleep_async(seconds)
    log_lateness(started, seconds)


@DBOS.workflow()
def long(steps: int) -> dict[str, float]:
    """So many steps in sequence, and when each was done."""
    marks = [time.perf_counter()]
    for number in range(steps):
        step(number)
        marks.append(time.perf_counter())
    return edges(marks)


def launch(url: str) -> None:
    """Start DBOS in this process."""
    DBOS(
        config={
            "name": "bench",
            "system_database_url": url,
            "executor_id": f"bench-{os.getpid()}",
            "application_version": "1",
            "log_level": "WARNING",
        }
    )
    DBOS.launch()


@contextmanager
def services(work: Path, options: Options) -> Iterator[Place]:
    """Postgres, with DBOS's tables in it."""
    with server("postgres", work) as (pid, url):
        launch(url)
        DBOS.destroy()
        yield Place({"postgres": [pid]}, url, url)


class Driver:
    """Its calls return when the workflow's outcome is committed."""

    def __init__(self, url: str, options: Options) -> None:
        self._url = url
        self._pool = ThreadPoolExecutor(options.inflight)

    async def __aenter__(self) -> Self:
        launch(self._url)
        return self

    async def __aexit__(self, *_: object) -> None:
        DBOS.destroy()

    async def _call(self, workflow: Callable[[int], Any], argument: int) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._pool, workflow, argument)

    async def chain(self, steps: int) -> None:
        await self._call(chain, steps)

    async def fanout(self, steps: int) -> None:
        await fanout(steps)

    async def timer(self, started: float, seconds: float) -> None:
        await DBOS.start_workflow_async(timer, started, seconds)

    async def long(self, steps: int) -> dict[str, float]:
        found: dict[str, float] = await self._call(long, steps)
        return found
