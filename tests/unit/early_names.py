"""Workflows that take functions of asyncio by name, declared before the engine's loop was imported. A script.

It prints results under ``TestEnv``, which rebuilds runs after every event, and whether each name is still CPython's.
"""

from __future__ import annotations

import asyncio
import sys
from asyncio import all_tasks, as_completed, wait_for

from ductor_stream import App, Run
from unit import early_names_helper

app = App("early")
ORIGINALS = (all_tasks, as_completed, wait_for)


@app.step
async def double(n: int) -> int:
    return 2 * n


@app.workflow
async def own(run: Run) -> list[int]:
    async def branch(n: int) -> int:
        return await run.step(double, n)

    found = [await wait_for(finished, 3_600) for finished in as_completed([branch(n) for n in range(8)])]
    return [*found, len(all_tasks())]


@app.workflow
async def helped(run: Run) -> list[int]:
    async def branch(n: int) -> int:
        return await run.step(double, n)

    return await early_names_helper.as_they_come(branch(n) for n in range(8))


async def main() -> None:
    from ductor_stream.testing import TestEnv

    async with TestEnv(app) as env:
        for workflow in (own, helped):
            print(await (await env.start(workflow)).result())


if __name__ == "__main__":
    assert "ductor_stream.engine.planners.loop" not in sys.modules
    asyncio.run(main())
    now = (all_tasks, as_completed, wait_for)
    print([one is other for one, other in zip(now, ORIGINALS, strict=True)])
