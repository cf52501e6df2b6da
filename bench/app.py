"""The workloads: the app whose coordinators and workers are measured, loaded by the product's own command line."""

from __future__ import annotations

import asyncio

from ductor_stream import App, Run

app = App("bench")
go = app.signal("go", int)

PAYLOAD = "x" * 64


@app.step
async def noop(number: int) -> dict[str, int | str]:
    """Do nothing, and return about 100 bytes of JSON."""
    return {"step": number, "status": "ok", "payload": PAYLOAD}


@app.step
async def echo(text: str) -> str:
    """Return what came in: the payload goes to the worker and back."""
    return text


@app.workflow
async def chain(run: Run, steps: int) -> int:
    """So many steps, one after the other: each result is durable before the next one is dispatched."""
    for number in range(steps):
        await run.step(noop, number)
    return steps


@app.workflow
async def fanout(run: Run, steps: int) -> int:
    """So many steps at once, and a join."""
    return len(await asyncio.gather(*(run.step(noop, number) for number in range(steps))))


@app.workflow
async def sleeper(run: Run, due_at: float) -> None:
    """Sleep until a moment (seconds since 1970)."""
    await asyncio.sleep(due_at - run.now().timestamp())


@app.workflow
async def nap(run: Run, seconds: float) -> None:
    """Sleep for so long, from when the start was applied."""
    await asyncio.sleep(seconds)


@app.workflow
async def idle(run: Run) -> int:
    """Wait for a signal, which may never come."""
    return await run.wait_signal(go)


@app.workflow
async def carry(run: Run, text: str) -> int:
    """Ten steps, each of which takes and returns the whole text."""
    for _ in range(10):
        text = await run.step(echo, text)
    return len(text)
