"""Where a coordinator's time goes: ``python -m bench.profile [--mode kafka|sync] [--partitions N] [--py-spy]``.

Two windows on the chain workload, each with a fresh fleet: one under a stopwatch around the parts of the loop, which
tells µs per step without much distortion; one under cProfile, which tells functions, and makes each call dearer.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.fleet import Mode, Shape, over_kafka, sync
from bench.load import ClosedLoop
from bench.measures.chains import STEPS
from bench.measures.payloads import in_flight_of, random_text
from bench.report import HERE
from bench.scenario import Scenario, opened
from bench.servers import Servers, running

PACKAGE = "ductor_stream/"
_ANSWER_WITHIN_S = 30.0


@dataclass(frozen=True)
class Window:
    """What a watched coordinator has told, and how many steps were done meanwhile."""

    told: dict[str, Any]
    steps: int
    seconds: float
    by_role: dict[str, float]


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m bench.profile", description=__doc__)
    parser.add_argument("--mode", choices=["kafka", "sync"], default="kafka")
    parser.add_argument("--partitions", type=int, help="of the inbound topics; else the shipped default")
    parser.add_argument("--in-flight", type=int, default=2_000)
    parser.add_argument(
        "--kb", type=int, default=0, help="steps that take and return so much text; else chains of no-ops"
    )
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--warm", type=float, default=5.0, help="seconds before each window")
    parser.add_argument("--top", type=int, default=40, help="functions to show")
    parser.add_argument("--tool", choices=["both", "stopwatch", "cprofile"], default="both")
    parser.add_argument("--py-spy", action="store_true", help="record a flame graph too, where py-spy is installed")
    options = parser.parse_args(arguments)
    console = Console(width=160)
    with running() as servers:
        servers.warm_broker(options.warm)
        for tool in ("stopwatch", "cprofile") if options.tool == "both" else (options.tool,):
            window = _watch(servers, options, tool)
            console.print(_summary(window, tool))
            console.print(_accounts(window) if tool == "stopwatch" else _functions(window, options.top))
            if tool == "cprofile":
                console.print(_modules(window))


def _shape(mode: Mode, partitions: int | None) -> Shape:
    return sync(partitions=partitions) if mode == "sync" else over_kafka(partitions=partitions)


def _watch(servers: Servers, options: argparse.Namespace, tool: str) -> Window:
    out = servers.folder / f"profile-{tool}.json"
    own = {"BENCH_PROFILE_OUT": str(out), "BENCH_PROFILE_TOOL": tool}
    with opened(servers, _shape(options.mode, options.partitions), watched=own) as scenario:
        pid = scenario.fleet.owners()[0].process.pid
        workflow, given = ("carry", random_text(options.kb)) if options.kb else ("chain", STEPS)
        in_flight = options.in_flight if not options.kb else in_flight_of(options.in_flight, options.kb)
        loop = ClosedLoop(scenario.load, lambda: scenario.load.start(workflow, given), in_flight)
        loop.run_for(options.warm)
        spy = _spy(pid, options) if options.py_spy and tool == "stopwatch" else None
        meter = scenario.meter()
        meter.start()
        os.kill(pid, signal.SIGUSR1)
        ended = loop.run_for(options.seconds)
        os.kill(pid, signal.SIGUSR2)
        usage = meter.stop()
        steps = STEPS * len(ended)
        window = Window(_told(out, loop), steps, usage.seconds, usage.per_step_ms(steps))
        if spy is not None:
            spy.wait(60)
        _end(scenario)
        return window


def _told(out: Path, loop: ClosedLoop) -> dict[str, Any]:
    """It answers between two of its turns, so the load goes on until then."""
    deadline = time.monotonic() + _ANSWER_WITHIN_S
    while not out.exists():
        assert time.monotonic() < deadline, f"the coordinator has not written {out}"
        loop.run_for(0.1)
    found: dict[str, Any] = json.loads(out.read_text())
    return found


def _end(scenario: Scenario) -> None:
    scenario.load.drain()


def _spy(pid: int, options: argparse.Namespace) -> subprocess.Popen[bytes] | None:
    program = shutil.which("py-spy") or shutil.which("py-spy", path=str(HERE.parent / ".venv/bin"))
    if program is None:
        print("py-spy is not installed: no flame graph")
        return None
    graph = HERE / "out" / f"flame-{options.mode}.svg"
    print(f"flame graph: {graph}")
    seconds = str(max(1, int(options.seconds)))
    return subprocess.Popen(
        [program, "record", "--pid", str(pid), "--duration", seconds, "--output", str(graph), "--gil"]
    )


def _summary(window: Window, tool: str) -> str:
    told, steps = window.told, window.steps
    roles = ", ".join(f"{role} {ms * 1e3:.0f}" for role, ms in window.by_role.items())
    missing = f"\n[red]not found, and not accounted for: {', '.join(told['missing'])}[/]" if told["missing"] else ""
    return (
        f"\n[bold]{tool}[/]: {steps:,} steps in {window.seconds:.1f} s = {steps / window.seconds:,.0f} steps/s; "
        f"CPU µs per step: {roles}; the coordinator's process {told['process_cpu_s'] / max(steps, 1) * 1e6:.1f}{missing}"
    )


def _accounts(window: Window) -> Table:
    """µs per step of the loop's thread; librdkafka's threads and the rest of the process are the last line."""
    table = Table(title="the loop, by its parts", title_justify="left")
    for name in ("part", "CPU µs per step", "wall µs per step", "share of wall", "calls", "steps per call"):
        table.add_column(name, justify="left" if name == "part" else "right")
    accounts, steps = window.told["accounts"], max(window.steps, 1)
    wall = sum(each["wall_s"] for each in accounts.values()) or 1.0
    for name, each in accounts.items():
        table.add_row(name, f"{each['cpu_s'] / steps * 1e6:.1f}", f"{each['wall_s'] / steps * 1e6:.1f}",
                      f"{each['wall_s'] / wall:.0%}", f"{each['calls']:,}", f"{steps / max(each['calls'], 1):.1f}")  # fmt: skip
    cpu = sum(each["cpu_s"] for each in accounts.values())
    others = window.told["process_cpu_s"] - cpu
    table.add_row("loop's thread", f"{cpu / steps * 1e6:.1f}", f"{wall / steps * 1e6:.1f}", "", "", "")
    table.add_row("other threads", f"{others / steps * 1e6:.1f}", "", "", "", "")
    return table


def _functions(window: Window, top: int) -> Table:
    table = Table(title="functions by own time, under cProfile", title_justify="left")
    for name in ("function", "own µs per step", "with callees", "calls per step"):
        table.add_column(name, justify="left" if name == "function" else "right")
    steps = max(window.steps, 1)
    for each in sorted(window.told["functions"], key=lambda one: -one["own_s"])[:top]:
        table.add_row(f"{_place(each['file'])}:{each['line']} {each['name']}", f"{each['own_s'] / steps * 1e6:.2f}",
                      f"{each['all_s'] / steps * 1e6:.2f}", f"{each['calls'] / steps:.2f}")  # fmt: skip
    return table


def _modules(window: Window) -> Table:
    table = Table(title="own time by module, under cProfile", title_justify="left")
    table.add_column("module")
    table.add_column("own µs per step", justify="right")
    found: dict[str, float] = {}
    for each in window.told["functions"]:
        found[_place(each["file"])] = found.get(_place(each["file"]), 0.0) + each["own_s"]
    for name, own_s in sorted(found.items(), key=lambda pair: -pair[1])[:25]:
        table.add_row(name, f"{own_s / max(window.steps, 1) * 1e6:.2f}")
    return table


def _place(file: str) -> str:
    """A file as we call it: ours from the package on, others by their last two parts, ``~`` is C."""
    if PACKAGE in file and "site-packages" not in file:
        return file.rpartition(PACKAGE)[2]
    return "/".join(Path(file).parts[-2:]) if file != "~" else "C"


if __name__ == "__main__":
    main()
