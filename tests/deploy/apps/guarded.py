"""An app that makes each process do all that it ever does in Kafka: tasks on two queues, retries, timers, stops."""

from __future__ import annotations

import asyncio

from ductor_stream import App, Retry, RetryableError, Run, current_attempt

app = App("guarded")
paid = app.signal("paid", int)

PAUSE_S = 0.05


@app.step(queue="payments", retry=Retry(initial=0.05))
async def charge(amount: int) -> int:
    """Fails at first."""
    if current_attempt().attempt == 1:
        raise RetryableError("busy")
    return amount


@app.step(queue="stock", heartbeat=5)
async def reserve(forever: bool) -> str:
    """Tells that it lives; ends when it is asked to, where it would not by itself."""
    while forever:
        current_attempt().heartbeat("waiting")
        await asyncio.sleep(PAUSE_S)
    return "reserved"


@app.workflow
async def order(run: Run, forever: bool) -> int:
    """Both steps, a timer, a signal."""
    await run.step(reserve, forever)
    await asyncio.sleep(PAUSE_S)
    return await run.step(charge, await run.wait_signal(paid))
