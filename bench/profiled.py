"""A coordinator that watches itself: started by profile.py in the place of the product's ``coordinator`` or ``serve``.

It takes the same arguments. SIGUSR1 begins the window and SIGUSR2 ends it; then what was seen is written to the file
that ``BENCH_PROFILE_OUT`` names. ``BENCH_PROFILE_TOOL`` is ``stopwatch`` or ``cprofile``.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import os
import pstats
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec
from prometheus_client import CollectorRegistry

from bench.app import app
from ductor_stream.cli.running import run_process
from ductor_stream.config import load
from ductor_stream.coordinator.service import Coordinator
from ductor_stream.telemetry.metrics import Metrics
from ductor_stream.wiring.group import Service
from ductor_stream.wiring.serving import serving_services

POINTS = {
    "intake.take": "decode",
    "log.poll": "kafka",
    "local.results": "kafka",
    "cache.load": "load",
    "ticker.tick_all": "tick",
    "committer.prepare": "encode",
    "store.commit": "commit",
    "committed": "remember",
    "dispatch": "dispatch",
    "guarded_turn": "rest",
}
"""Method of the coordinator (by its path) -> the account that its own time goes to; what it calls has accounts too."""


@dataclass
class Account:
    """Calls, and own time in seconds: by the wall, and of this thread's CPU."""

    calls: int = 0
    wall_s: float = 0.0
    cpu_s: float = 0.0


@dataclass
class Stopwatch:
    """Own time by account: an inner account stops the outer one's watch. One thread at a time has one stack."""

    accounts: dict[str, Account] = field(default_factory=dict)
    _local: threading.local = field(default_factory=threading.local)

    def watch(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, its own time going to that account."""
        account = self.accounts.setdefault(name, Account())

        def watched(*args: Any, **kwargs: Any) -> Any:
            self._turn_to(account)
            account.calls += 1
            try:
                return function(*args, **kwargs)
            finally:
                self._turn_to(None)

        return watched

    def reset(self) -> None:
        """Forget what was counted."""
        for account in self.accounts.values():
            account.calls, account.wall_s, account.cpu_s = 0, 0.0, 0.0

    def _turn_to(self, account: Account | None) -> None:
        """Stop the watch of the innermost account; go on with ``account`` inside it, or (None) with the one outside it."""
        stack: list[Account] = self._local.__dict__.setdefault("stack", [])
        wall, cpu = time.perf_counter(), time.thread_time()
        if stack:
            stack[-1].wall_s += wall - self._local.wall
            stack[-1].cpu_s += cpu - self._local.cpu
        if account is not None:
            stack.append(account)
        else:
            stack.pop()
        self._local.wall, self._local.cpu = wall, cpu


class Watched:
    """A coordinator under watch. What signals ask for is done by its own thread, between two turns."""

    def __init__(self, coordinator: Coordinator, tool: str, out: Path) -> None:
        self._out = out
        self._asked = ""
        self._stopwatch = Stopwatch()
        self._profile = cProfile.Profile() if tool == "cprofile" else None
        self._began = (0.0, 0.0)
        self._missing: list[str] = []
        if self._profile is None:
            self._place(coordinator)
        turn = coordinator.guarded_turn

        def turned() -> None:
            if self._asked:
                self._obey()
            turn()

        coordinator.guarded_turn = turned  # type: ignore[method-assign]

    def ask(self, number: int, _: object) -> None:
        """The signal handler."""
        self._asked = "begin" if number == signal.SIGUSR1 else "end"

    def _place(self, coordinator: Coordinator) -> None:
        for path, name in POINTS.items():
            owner: Any = coordinator
            *parents, method = path.split(".")
            for parent in parents:
                owner = getattr(owner, parent, None)
            if (found := getattr(owner, method, None)) is None:
                self._missing.append(path)
            else:
                setattr(owner, method, self._stopwatch.watch(name, found))

    def _obey(self) -> None:
        asked, self._asked = self._asked, ""
        if asked == "begin":
            self._began = (time.perf_counter(), time.process_time())
            self._stopwatch.reset()
            if self._profile is not None:
                self._profile.enable()
            return
        wall_s, process_cpu_s = time.perf_counter() - self._began[0], time.process_time() - self._began[1]
        if self._profile is not None:
            self._profile.disable()
        found = {
            "wall_s": wall_s,
            "process_cpu_s": process_cpu_s,
            "accounts": {name: vars(account) for name, account in self._stopwatch.accounts.items()},
            "functions": _functions(self._profile) if self._profile is not None else [],
            "missing": self._missing,
        }
        scratch = self._out.with_suffix(".new")
        scratch.write_text(json.dumps(found))
        scratch.rename(self._out)


def _functions(profile: cProfile.Profile) -> list[dict[str, Any]]:
    stats: Any = pstats.Stats(profile)
    return [
        {"file": file, "line": line, "name": name, "calls": calls, "own_s": own, "all_s": whole}
        for (file, line, name), (_, calls, own, whole, _) in stats.stats.items()
    ]


def main() -> None:
    """Run as the command line would, under watch."""
    parser = argparse.ArgumentParser()
    parser.add_argument("role", choices=["coordinator", "serve"])
    parser.add_argument("app")
    parser.add_argument("--health-port", type=int)
    parser.add_argument("--concurrency", type=int, default=1)
    given = parser.parse_args()
    settings = msgspec.structs.replace(load(), health_port=given.health_port)
    queues = app.queues() if given.role == "serve" else ()

    def build(registry: CollectorRegistry) -> list[Service]:
        metrics = Metrics(registry, app=settings.topics(app.namespace).namespace)
        first, *others = serving_services(app, settings, metrics, queues, given.concurrency)
        coordinator: Coordinator = first.run.__self__  # type: ignore[attr-defined]
        watched = Watched(coordinator, os.environ["BENCH_PROFILE_TOOL"], Path(os.environ["BENCH_PROFILE_OUT"]))
        for number in (signal.SIGUSR1, signal.SIGUSR2):
            signal.signal(number, watched.ask)
        return [replace(first, run=coordinator.run), *others]

    run_process(settings, build)


if __name__ == "__main__":
    main()
