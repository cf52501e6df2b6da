# mypy: disable-error-code="import-not-found, untyped-decorator"
# (the peer is installed in an environment of its own)
"""Restate with its defaults, its log fsynced: its server on loopback, the Python SDK's handlers in Granian workers.

``mode=`` adds settings to the server's configuration, such as ``default-num-partitions=1``.
"""

from __future__ import annotations

import signal
import socket
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, Self

import aiohttp
import restate

from bench.peers.common import Place, edges, free_port, home, log_lateness, service, step_result, wait_until
from bench.peers.options import Options

bench = restate.Service("bench")


async def step(number: int) -> dict[str, Any]:
    """The no-op."""
    return step_result(number)


@bench.handler()
async def chain(ctx: restate.Context, steps: int) -> int:
    """So many steps in sequence."""
    for number in range(steps):
        await ctx.run_typed("step", step, restate.RunOptions(), number)
    return steps


@bench.handler()
async def fanout(ctx: restate.Context, steps: int) -> int:
    """So many steps at once."""
    runs = [ctx.run_typed("step", step, restate.RunOptions(), number) for number in range(steps)]
    return len(await restate.gather(*runs))


@bench.handler()
async def timer(ctx: restate.Context, due: list[float]) -> None:
    """Sleep, then tell how late it is."""
    await ctx.sleep(timedelta(seconds=due[1]))
    log_lateness(*due)


@bench.handler()
async def long(ctx: restate.Context, steps: int) -> dict[str, float]:
    """So many steps in sequence, and when each was done."""
    marks = [time.perf_counter()]
    for number in range(steps):
        await ctx.run_typed("step", step, restate.RunOptions(), number)
        marks.append(time.perf_counter())
    return edges(marks)


app = restate.app([bench])

_CONFIGURATION = """
bind-address = "127.0.0.1:{node}"
advertised-address = "http://127.0.0.1:{node}"
disable-telemetry = true
listen-mode = "tcp"
[admin]
bind-address = "127.0.0.1:{admin}"
[ingress]
bind-address = "127.0.0.1:{ingress}"
"""


def _program() -> Path:
    folder = home() / "npm" / "node_modules" / "@restatedev"
    return next(folder.glob("restate-server-*/bin/restate-server"))


def _post(url: str, body: bytes) -> None:
    request = urllib.request.Request(url, body, {"content-type": "application/json"})
    urllib.request.urlopen(request, timeout=30).close()


def _healthy(url: str) -> bool:
    try:
        urllib.request.urlopen(url, timeout=2).close()
        return True
    except OSError:
        return False


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@contextmanager
def services(work: Path, options: Options) -> Iterator[Place]:
    """The server and its workers."""
    node, admin, ingress, handlers = (free_port() for _ in range(4))
    config = work / "restate.toml"
    ports = _CONFIGURATION.format(node=node, admin=admin, ingress=ingress)
    config.write_text(options.mode.replace(";", "\n") + ports)
    server = [_program(), "-c", config, "--base-dir", work / "data", "--no-logo"]
    worker = [
        sys.executable,
        "-m",
        "granian",
        "bench.peers.on_restate:app",
        "--interface",
        "asgi",
        "--http",
        "2",
        "--no-ws",
    ]
    worker += [
        "--host",
        "127.0.0.1",
        "--port",
        str(handlers),
        "--workers",
        str(options.workers),
        "--log-level",
        "warning",
    ]
    with (
        service(worker, work / "worker.log", stop=signal.SIGKILL) as workers,
        service(server, work / "restate.log", environment={"DO_NOT_TRACK": "1"}) as restated,
    ):
        wait_until(lambda: _healthy(f"http://127.0.0.1:{admin}/health"), "Restate")
        wait_until(lambda: _listens(handlers), "the worker")
        _post(f"http://127.0.0.1:{admin}/deployments", f'{{"uri": "http://127.0.0.1:{handlers}"}}'.encode())
        yield Place({"restate": [restated.pid], "workers": [workers.pid]}, f"http://127.0.0.1:{ingress}/bench/")


class Driver:
    """Calls by HTTP, as Restate's clients do."""

    def __init__(self, url: str, options: Options) -> None:
        self._url = url

    async def __aenter__(self) -> Self:
        self._http = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout(900))
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.close()

    async def _call(self, handler: str, body: object) -> Any:
        async with self._http.post(self._url + handler, json=body) as response:
            response.raise_for_status()
            return await response.json()

    async def chain(self, steps: int) -> None:
        await self._call("chain", steps)

    async def fanout(self, steps: int) -> None:
        await self._call("fanout", steps)

    async def timer(self, started: float, seconds: float) -> None:
        await self._call("timer/send", [started, seconds])

    async def long(self, steps: int) -> dict[str, float]:
        found: dict[str, float] = await self._call("long", steps)
        return found
