"""The app of the tests with processes: orders whose steps fail now and then, fan-outs, steps that wait."""

from __future__ import annotations

import asyncio
import zlib
from dataclasses import dataclass

from told import effect, until_file

from ductor_stream import App, Retry, RetryableError, Run, current_attempt

app = App("shop")
paid = app.signal("paid", int)

PATIENT = Retry(max_attempts=20, initial=0.05, maximum=1.0)
"""Attempts fail on purpose, and with each process that is killed."""

DRIES_S = 0.3
POLISHED_S = 1.5
"""Long enough for heartbeats: its owner hears of such an attempt, and misses it when its process dies."""


@dataclass
class Order:
    """So many steps; a fine one is polished besides."""

    steps: int
    fine: bool = False


def fails() -> bool:
    """Whether this attempt is one of the tenth that fails: the same answer in every process."""
    attempt = current_attempt()
    return zlib.crc32(f"{attempt.idempotency_key} {attempt.attempt}".encode()) % 10 == 0


@app.step(retry=PATIENT, timeout=30)
async def pick(n: int) -> int:
    """An async step."""
    effect(step="pick")
    if fails():
        raise RetryableError("dropped it", type="Dropped")
    return n


@app.step(retry=PATIENT, timeout=30)
def pack(n: int) -> int:
    """A plain one, in a thread."""
    effect(step="pack")
    if fails():
        raise ValueError("does not fit")
    return n


@app.step(retry=PATIENT, timeout=30)
async def polish(n: int) -> int:
    """One that takes its time."""
    effect(step="polish")
    await asyncio.sleep(POLISHED_S)
    return n


@app.workflow
async def order(run: Run, what: Order) -> list[int]:
    """Steps side by side and in a row; every fourth kind of order is paid by a signal, some have to dry."""
    found = list(await asyncio.gather(*(run.step(pick, n) for n in range(what.steps - 3))))
    if what.steps % 4 == 0:
        found.append(await run.wait_signal(paid))
    for n in range(3):
        found.append(await run.step(polish if what.fine and n == 1 else pack, n))
        if what.steps % 3 == 0:
            await asyncio.sleep(DRIES_S)
    return found


@app.step(timeout=600, retry=PATIENT)
def gated(gate: str) -> str:
    """Begins, and ends when the test lets it."""
    effect(step="gated", gate=gate)
    until_file(gate)
    return gate


@app.step(retry=PATIENT)
async def quick(n: int) -> int:
    """Never fails."""
    effect(step="quick", n=n)
    return n


@app.workflow
async def fan(run: Run, n: int) -> int:
    """All steps at once; how many different results came back."""
    return len(set(await asyncio.gather(*(run.step(quick, each) for each in range(n)))))


@app.workflow
async def chain(run: Run, n: int) -> list[int]:
    """One step after the other."""
    return [await run.step(quick, each) for each in range(n)]


@app.workflow
async def held(run: Run, gate: str) -> list[int | str]:
    """A step before, one that waits at a gate, a step after."""
    return [await run.step(quick, 1), await run.step(gated, gate), await run.step(quick, 2)]
