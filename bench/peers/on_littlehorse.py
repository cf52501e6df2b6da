# mypy: disable-error-code="import-not-found"
# (the peer is installed in an environment of its own)
"""LittleHorse: its server (Kafka Streams, G1) on a one-node Kafka, the Python SDK's task workers.

Its workflows are graphs that the server walks: only the tasks run in the workers. A workflow ends by throwing an
event, which the client awaits. ``mode=flush`` has Kafka call fsync for every batch; else it leaves that to the
kernel, as by default: its steps are then not on disk before the next begins. ``mode=KEY=VALUE`` sets the server.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import littlehorse
from littlehorse.model import (
    AwaitWorkflowEventRequest,
    Comparator,
    RunWfRequest,
    VariableMutationType,
    VariableType,
    WfRunId,
    WorkflowEventDefId,
)
from littlehorse.worker import LHTaskWorker
from littlehorse.workflow import WorkflowThread

from bench.peers import littlehorse_server
from bench.peers.common import TIMER_LOG, Place, edges, log_lateness, step_result
from bench.peers.options import Options

_POLLS = 4
"""Task requests that a worker process keeps open."""
_DEADLINE_S = 900.0

marks: list[float] = []


def _marks_file() -> Path:
    return Path(os.environ[TIMER_LOG] + ".marks")


async def step(number: int) -> dict[str, Any]:
    """The no-op."""
    return step_result(number)


async def long_step(number: int, steps: int) -> dict[str, Any]:
    """Note when each step ran; the last one leaves the result where the driver finds it."""
    if number == 0:
        marks.clear()
    marks.append(time.perf_counter())
    if number == steps - 1:
        _marks_file().write_text(json.dumps(edges(marks)))
    return step_result(number)


async def late(started: float, seconds: int) -> int:
    """Tell how late a timer is."""
    log_lateness(started, seconds)
    return seconds


TASKS = {"step": step, "long-step": long_step, "late": late}


def _done(wf: WorkflowThread) -> None:
    wf.throw_event("done", "", auto_register=True, return_type=str)


def chain(wf: WorkflowThread) -> None:
    """Ten steps in sequence."""
    for number in range(10):
        wf.execute("step", number)
    _done(wf)


def fanout(wf: WorkflowThread) -> None:
    """As many steps at once as there are items."""

    def one(child: WorkflowThread) -> None:
        child.execute("step", child.add_variable("INPUT", VariableType.INT))

    items = wf.add_variable("items", VariableType.JSON_ARR)
    wf.wait_for_threads(wf.spawn_thread_for_each(items, one, "one"))
    _done(wf)


def timer(wf: WorkflowThread) -> None:
    """Sleep, then tell how late it is."""
    started, seconds = wf.declare_double("started"), wf.declare_int("seconds")
    wf.sleep(seconds)
    wf.execute("late", started, seconds)


def long(wf: WorkflowThread) -> None:
    """So many steps in sequence."""
    steps, number = wf.declare_int("steps"), wf.declare_int("number", default_value=0)

    def body(loop: WorkflowThread) -> None:
        loop.execute("long-step", number, steps)
        loop.mutate(number, VariableMutationType.ADD, 1)

    wf.do_while(wf.condition(number, Comparator.LESS_THAN, steps), body)
    _done(wf)


WORKFLOWS = {"chain": chain, "fanout": fanout, "timer": timer, "long": long}


async def work(address: str) -> None:
    """A worker process: each task has a stream of its own."""
    workers = []
    for name, task in TASKS.items():
        for _ in range(_POLLS if name == "step" else 1):
            workers.append(LHTaskWorker(task, name, littlehorse_server.config_for(address)))
    running = asyncio.create_task(littlehorse.start(*workers))
    while not all(worker._connections for worker in workers) and not running.done():
        await asyncio.sleep(0.1)
    print("ready", flush=True)
    await running


@contextmanager
def services(work: Path, options: Options) -> Iterator[Place]:
    """Kafka, the server, the workers."""
    logging.disable(logging.WARNING)
    command = [sys.executable, "-m", __name__]
    with littlehorse_server.running(work, options, (TASKS, WORKFLOWS), command) as place:
        yield place


class Driver:
    """Starts runs and awaits their event."""

    def __init__(self, url: str, options: Options) -> None:
        logging.disable(logging.WARNING)
        self._config = littlehorse_server.config_for(url)

    async def __aenter__(self) -> Self:
        self._stub = self._config.stub(async_channel=True)
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    async def _start(self, name: str, **variables: Any) -> str:
        run_id = uuid.uuid4().hex
        values = {key: littlehorse.to_variable_value(value) for key, value in variables.items()}
        await self._stub.RunWf(RunWfRequest(wf_spec_name=name, id=run_id, variables=values))
        return run_id

    async def _call(self, name: str, **variables: Any) -> None:
        run_id = await self._start(name, **variables)
        event = WorkflowEventDefId(name="done")
        request = AwaitWorkflowEventRequest(wf_run_id=WfRunId(id=run_id), event_def_ids=[event])
        await self._stub.AwaitWorkflowEvent(request, timeout=_DEADLINE_S)

    async def chain(self, steps: int) -> None:
        assert steps == 10, "the graph has ten steps"
        await self._call("chain")

    async def fanout(self, steps: int) -> None:
        await self._call("fanout", items=list(range(steps)))

    async def timer(self, started: float, seconds: float) -> None:
        await self._start("timer", started=started, seconds=int(seconds))

    async def long(self, steps: int) -> dict[str, float]:
        await self._call("long", steps=steps)
        found: dict[str, float] = json.loads(_marks_file().read_text())
        return found


if __name__ == "__main__":
    asyncio.run(work(sys.argv[1]))
