# mypy: disable-error-code="import-not-found, untyped-decorator"
# (the peer is installed in an environment of its own)
"""Temporal: its server (all four services in one process) on Postgres, workers of its Python SDK without a sandbox.

``mode=local``: the steps are local activities, which run within one workflow task, so that their results reach the
disk together and not before the next step begins.
"""

from __future__ import annotations

import asyncio
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit, urlunsplit

from temporalio import activity, workflow
from temporalio.client import Client
from temporalio.worker import PollerBehaviorSimpleMaximum, UnsandboxedWorkflowRunner, Worker

with workflow.unsafe.imports_passed_through():
    from bench.peers import temporal_server
    from bench.peers.common import Place, edges, log_lateness, server, service, step_result, wait_until
    from bench.peers.options import Options

_QUEUE = "bench"
_TIMEOUT = timedelta(seconds=60)
_POLLERS, _CACHED = 8, 5_000


@activity.defn
async def step(number: int) -> dict[str, Any]:
    """The no-op."""
    return step_result(number)


def _step(number: int, local: bool) -> Any:
    execute = workflow.execute_local_activity if local else workflow.execute_activity
    return execute(step, number, start_to_close_timeout=_TIMEOUT)


@workflow.defn(name="chain")
class Chain:
    """So many steps in sequence."""

    @workflow.run
    async def run(self, steps: int, local: bool) -> int:
        for number in range(steps):
            await _step(number, local)
        return steps


@workflow.defn(name="fanout")
class Fanout:
    """So many steps at once."""

    @workflow.run
    async def run(self, steps: int, local: bool) -> int:
        return len(await asyncio.gather(*(_step(number, local) for number in range(steps))))


@workflow.defn(name="timer")
class Timer:
    """Sleep, then tell how late it is."""

    @workflow.run
    async def run(self, started: float, seconds: float) -> None:
        await asyncio.sleep(seconds)
        with workflow.unsafe.sandbox_unrestricted():
            log_lateness(started, seconds)


@workflow.defn(name="long")
class Long:
    """So many steps in sequence, and when each was done."""

    @workflow.run
    async def run(self, steps: int, local: bool) -> dict[str, float]:
        with workflow.unsafe.sandbox_unrestricted():
            marks = [time.perf_counter()]
            for number in range(steps):
                await _step(number, local)
                marks.append(time.perf_counter())
            return edges(marks)


async def work(address: str) -> None:
    """A worker process."""
    client = await Client.connect(address)
    pollers = PollerBehaviorSimpleMaximum(_POLLERS)
    worker = Worker(
        client,
        task_queue=_QUEUE,
        workflows=[Chain, Fanout, Timer, Long],
        activities=[step],
        workflow_runner=UnsandboxedWorkflowRunner(),
        max_cached_workflows=_CACHED,
        max_concurrent_workflow_tasks=200,
        max_concurrent_activities=1_000,
        max_concurrent_local_activities=1_000,
        workflow_task_poller_behavior=pollers,
        activity_task_poller_behavior=pollers,
    )
    async with worker:
        print("ready", flush=True)
        await asyncio.Event().wait()


@contextmanager
def services(work: Path, options: Options) -> Iterator[Place]:
    """Postgres, the server, the workers."""
    with ExitStack() as stack:
        pid, url = stack.enter_context(server("postgres", work))
        temporal_server.apply_schemas(url)
        command, address = temporal_server.command(work, url)
        temporal = stack.enter_context(service(command, work / "temporal.log"))
        asyncio.run(temporal_server.make_namespace(address))
        workers = []
        for number in range(options.workers):
            log = work / f"worker{number}.log"
            worker = stack.enter_context(service([sys.executable, "-m", __name__, address], log))
            workers.append(worker.pid)
            wait_until(lambda log=log: "ready" in log.read_text(), "the worker")  # type: ignore[misc]
        database = urlunsplit(urlsplit(url)._replace(path="/temporal"))
        yield Place({"postgres": [pid], "temporal": [temporal.pid], "workers": workers}, address, database)


class Driver:
    """Calls by the SDK's client."""

    def __init__(self, url: str, options: Options) -> None:
        self._address, self._local = url, "local" in options.words()

    async def __aenter__(self) -> Self:
        self._client = await Client.connect(self._address)
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    async def _call(self, name: str, steps: int) -> Any:
        arguments = [steps, self._local]
        return await self._client.execute_workflow(name, args=arguments, id=str(uuid.uuid4()), task_queue=_QUEUE)

    async def chain(self, steps: int) -> None:
        await self._call("chain", steps)

    async def fanout(self, steps: int) -> None:
        await self._call("fanout", steps)

    async def timer(self, started: float, seconds: float) -> None:
        arguments = [started, seconds]
        await self._client.start_workflow("timer", args=arguments, id=str(uuid.uuid4()), task_queue=_QUEUE)

    async def long(self, steps: int) -> dict[str, float]:
        found: dict[str, float] = await self._call("long", steps)
        return found


if __name__ == "__main__":
    asyncio.run(work(sys.argv[1]))
