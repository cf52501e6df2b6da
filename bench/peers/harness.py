"""Measure one peer once, on fresh services: ``python -m bench.peers.harness PEER WORKLOAD [option=value ...]``.

Runs in the peer's Python, and prints a JSON line. A peer is a module with two names:

* ``services(work, options)``: a context manager that starts what the peer needs and yields a ``Place``;
* ``Driver(url, options)``: an async context manager, one per driver process, whose methods ``chain``, ``fanout``,
  ``timer`` and ``long`` each run one workflow; all but ``timer`` return once the workflow has durably ended.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import multiprocessing
import os
import signal
import sys
import tempfile
import traceback
from pathlib import Path
from typing import Any

from bench.accounting import Meter, Usage
from bench.peers.common import TIMER_LOG
from bench.peers.options import Options, parsed
from bench.peers.workloads import WORKLOADS, closed_loop
from bench.results import quantile

_READY_WITHIN_S = 120.0
_ENDED_WITHIN_S = 900.0
_CHAIN = 10


def drive(peer: str, url: str, workload: str, options: Options, gate: Any, results: Any) -> None:
    """A driver process: connect, warm up, then run the workload between the parent's gates."""

    async def run() -> None:
        async with importlib.import_module(peer).Driver(url, options) as driver:
            await closed_loop(lambda: driver.chain(_CHAIN), options.inflight, count=options.warmup)
            await asyncio.to_thread(gate.wait)  # all are warm: the parent reads its meters
            await asyncio.to_thread(gate.wait)
            results.put(await WORKLOADS[workload](driver, options))
            await asyncio.to_thread(gate.wait)  # the parent has read them again

    try:
        asyncio.run(run())
    except BaseException:
        gate.abort()
        results.put({"error": traceback.format_exc()})
        raise


def measure(peer: str, workload: str, options: Options) -> dict[str, Any]:
    """Run one workload once on fresh services; returns its figures."""
    module = importlib.import_module(peer)
    with tempfile.TemporaryDirectory(prefix="ductor-peers-") as name:
        work = Path(name)
        work.chmod(0o755)
        timers = work / "timers"
        timers.touch()
        os.environ[TIMER_LOG] = str(timers)
        with module.services(work, options) as place:
            parts, usage = _driven(peer, workload, options, place)
        late = [float(line) for line in timers.read_text().split()] if workload == "timers" else []
    return {"peer": peer, "workload": workload, "options": vars(options), **_summary(workload, parts, usage, late)}


def _driven(peer: str, workload: str, options: Options, place: Any) -> tuple[list[dict[str, Any]], Usage]:
    spawn = multiprocessing.get_context("spawn")
    gate, results = spawn.Barrier(options.drivers + 1), spawn.Queue()
    arguments = (peer, place.url, workload, options, gate, results)
    drivers = [spawn.Process(target=drive, args=arguments, daemon=True) for _ in range(options.drivers)]
    for driver in drivers:
        driver.start()
    try:
        gate.wait(_READY_WITHIN_S + _ENDED_WITHIN_S)
        meter = Meter({**place.roles, "drivers": [each.pid for each in drivers if each.pid]}, place.database)
        meter.start()
        gate.wait(_READY_WITHIN_S)
        parts = [results.get(timeout=_ENDED_WITHIN_S) for _ in drivers]
        usage = meter.stop()
        if errors := [part["error"] for part in parts if "error" in part]:
            raise RuntimeError(errors[0])
        gate.wait(_READY_WITHIN_S)
    finally:
        for driver in drivers:
            driver.join(30)
            driver.kill()
    return parts, usage


def _summary(workload: str, parts: list[dict[str, Any]], usage: Usage, late: list[float]) -> dict[str, Any]:
    found: dict[str, Any] = {"foreign_share": usage.foreign_share, "busy_share": usage.busy_share}
    found |= {key: value for key, value in parts[0].items() if key != "latencies"}
    latencies = late or [took for part in parts for took in part.get("latencies", ())]
    if latencies:
        found |= {"p50_ms": quantile(latencies, 0.5) * 1e3, "p99_ms": quantile(latencies, 0.99) * 1e3}
    if workload == "chains":
        steps = _CHAIN * len(latencies)
        by_role = usage.per_step_ms(steps)
        found |= {"steps_per_s": steps / usage.seconds, "cpu_ms_per_step": by_role["all"], "by_role": by_role}
        found |= {"commits_per_step": usage.commits / steps}
    return found


def main() -> None:
    """Measure what the arguments say."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the services are ended
    peer, workload, *pairs = sys.argv[1:]
    print(json.dumps(measure(peer, workload, parsed(pairs))), flush=True)


if __name__ == "__main__":
    main()
