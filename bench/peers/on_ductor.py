"""Ours, as shipped: ``mode=sync`` is SyncMatch in ``serve`` processes, ``mode=kafka`` has workers apart.

``workers`` is the number of coordinators. Drivers ask on ``run-events`` and hear of ends on ``run-lifecycle``.
"""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Self

from bench.app import app
from bench.fleet import over_kafka, sync
from bench.history import commit_times_s
from bench.load import Load
from bench.peers.common import Place, edges, log_lateness
from bench.peers.options import Options
from bench.scenario import staffed
from bench.servers import running
from ductor_stream.config import load

_LISTEN_S = 0.05


@contextmanager
def services(work: Path, options: Options) -> Iterator[Place]:
    """Both servers and a fleet; ``work`` is not used, since the servers have a folder of their own."""
    with running() as servers:
        servers.warm_broker(options.broker_warm)
        many = options.workers
        shape = over_kafka(many, max(1, many // 2)) if "kafka" in options.words() else sync(many)
        with staffed(servers, shape) as (ground, fleet):
            roles = {role: pids for role, pids in ground.server_pids().items() if role != "load"}
            yield Place({**roles, **fleet.pids()}, json.dumps(ground.environment), ground.database)


class Driver:
    """Many runs at a time, each awaited by its future; one thread listens."""

    def __init__(self, url: str, options: Options) -> None:
        self._settings = load(json.loads(url))
        self._waiting: dict[str, asyncio.Future[None]] = {}
        self._napping: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._load = Load(self._settings, self._settings.topics(app.namespace))
        self._listener = asyncio.create_task(self._listen())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._listener.cancel()
        with suppress(asyncio.CancelledError):
            await self._listener
        await asyncio.sleep(2 * _LISTEN_S)  # its thread lets go of the consumer
        self._load.close()

    async def chain(self, steps: int) -> None:
        await self._run("chain", steps)

    async def fanout(self, steps: int) -> None:
        await self._run("fanout", steps)

    async def timer(self, started: float, seconds: float) -> None:
        nap = asyncio.create_task(self._nap(started, seconds))
        self._napping.add(nap)
        nap.add_done_callback(self._napping.discard)

    async def long(self, steps: int) -> dict[str, float]:
        run_id = await self._run("chain", steps)
        return edges(commit_times_s(self._settings.need_database(), run_id))

    async def _nap(self, started: float, seconds: float) -> None:
        await self._run("nap", seconds)
        log_lateness(started, seconds)

    async def _run(self, workflow: str, input: Any) -> str:
        run_id = uuid.uuid4().hex
        ended = self._waiting[run_id] = asyncio.get_running_loop().create_future()
        self._load.start(workflow, input, run_id)
        await ended
        return run_id

    async def _listen(self) -> None:
        try:
            while True:
                for run_id, _ in await asyncio.to_thread(self._load.heard, _LISTEN_S):
                    self._waiting.pop(run_id).set_result(None)
        except Exception as error:
            for waiting in self._waiting.values():
                waiting.set_exception(error)
            raise
