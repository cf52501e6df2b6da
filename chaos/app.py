"""The app under chaos: one workflow with a bit of everything, whose result is known beforehand; steps that record themselves."""

from __future__ import annotations

import asyncio
import os
import uuid
import zlib
from dataclasses import dataclass, field
from pathlib import Path

from chaos.records import Recorder
from ductor_stream import App, Retry, RetryableError, Run, current_attempt

app = App("chaos")
word = app.signal("word", int)

PATIENT = Retry(max_attempts=200, initial=0.05, maximum=2.0)
"""An attempt is lost with each process that is killed, and a tenth fails on purpose: none must ever be the last."""
SLOW_S = 1.5
"""Long enough for heartbeats: an owner hears of such an attempt, and misses it when its process dies."""
_recorder: Recorder | None = None


@dataclass
class Plan:
    """What a run does: so many of each, in this order."""

    steps: int = 1
    fan: int = 0
    nap_ms: int = 0
    words: int = 0
    children: int = 0
    laps: int = 1
    slow: bool = False
    heard: list[int] = field(default_factory=list)
    """What executions before this one have found."""


@dataclass
class Answer:
    """A step's result; ``token`` is this very call's, so that it can be told from where a result came."""

    value: int
    token: str


def note(step: str, value: int) -> Answer:
    """Record that this attempt was executed, with the answer that it is about to give."""
    global _recorder
    if _recorder is None:
        _recorder = Recorder(Path(os.environ["CHAOS_RECORDS"]), f"steps-{os.getpid()}")
    attempt, token = current_attempt(), uuid.uuid4().hex
    _recorder.note(
        "executed",
        run=attempt.run_id,
        execution=attempt.execution,
        node=attempt.node_id,
        generation=attempt.generation,
        attempt=attempt.attempt,
        key=attempt.idempotency_key,
        step=step,
        token=token,
    )
    return Answer(value, token)


def fails() -> bool:
    """Whether this attempt is one of the tenth that fails: the same answer in every process."""
    attempt = current_attempt()
    return zlib.crc32(f"{attempt.idempotency_key} {attempt.generation}".encode()) % 10 == 0


@app.step(retry=PATIENT, timeout=30)
async def pick(n: int) -> Answer:
    """An async step."""
    answer = note("pick", n)
    if fails():
        raise RetryableError("dropped it", type="Dropped")
    return answer


@app.step(retry=PATIENT, timeout=30)
def pack(n: int) -> Answer:
    """A plain one, in a thread."""
    answer = note("pack", n)
    if fails():
        raise ValueError("does not fit")
    return answer


@app.step(retry=PATIENT, timeout=30)
async def polish(n: int) -> Answer:
    """One that takes its time."""
    answer = note("polish", n)
    await asyncio.sleep(SLOW_S)
    return answer


@app.workflow
async def mixed(run: Run, plan: Plan) -> list[int]:
    """A bit of everything."""
    found = plan.heard
    for n in range(plan.steps):
        found.append((await run.step(pick if n % 2 else pack, n)).value)
    if plan.fan:
        found += [answer.value for answer in await asyncio.gather(*(run.step(pick, n) for n in range(plan.fan)))]
    if plan.slow:
        found.append((await run.step(polish, -1)).value)
    if plan.nap_ms:
        await asyncio.sleep(plan.nap_ms / 1000)
    for _ in range(plan.words):
        found.append(await run.wait_signal(word))
    if plan.children:
        parts = await asyncio.gather(*(run.child(mixed, Plan(steps=2)) for _ in range(plan.children)))
        found += [value for part in parts for value in part]
    if plan.laps > 1:
        run.continue_as_new(
            Plan(plan.steps, plan.fan, plan.nap_ms, plan.words, plan.children, plan.laps - 1, plan.slow, found)
        )
    return found


@app.workflow
async def endless(run: Run, plan: Plan) -> int:
    """Steps, and then a word that nobody will ever say: it ends by an order from outside."""
    for n in range(plan.steps):
        await run.step(pick, n)
    return await run.wait_signal(word)


def expected(plan: Plan, words: list[int]) -> list[int]:
    """The result of ``mixed``, of all executions together, when these words are said in this order."""
    one_child = list(range(2))
    found: list[int] = []
    for lap in range(plan.laps):
        found += [*range(plan.steps), *range(plan.fan), *([-1] if plan.slow else [])]
        found += words[lap * plan.words : (lap + 1) * plan.words]
        found += one_child * plan.children
    return found
