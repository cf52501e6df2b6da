"""Shared by the peers: the step's result, child processes, servers, lateness and edges."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
HOME = "BENCH_DIR"
"""Names the folder with what is installed of the peers."""
PYTHON = "BENCH_PYTHON"
"""Names our own Python, which starts Kafka and Postgres."""
TIMER_LOG = "BENCH_TIMER_LOG"
_PAYLOAD = "x" * 64
_READY_WITHIN_S = 60.0


@dataclass(frozen=True)
class Place:
    """Where a peer runs: its processes by role, what drivers connect to, and its Postgres if it has one."""

    roles: Mapping[str, Sequence[int]]
    url: str
    database: str = ""


def step_result(number: int) -> dict[str, Any]:
    """What every no-op step returns: about 100 bytes once it is JSON."""
    return {"step": number, "status": "ok", "payload": _PAYLOAD}


def home() -> Path:
    """The folder with what is installed of the peers."""
    return Path(os.environ[HOME])


def free_port() -> int:
    """A port of loopback that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def wait_until(ready: Callable[[], object], what: str, within_s: float = _READY_WITHIN_S) -> None:
    """Return once that is so. Raises TimeoutError."""
    deadline = time.monotonic() + within_s
    while not ready():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what} is not ready after {within_s:g} s")
        time.sleep(0.1)


@contextmanager
def service(
    command: Sequence[object],
    log: Path,
    stop: signal.Signals = signal.SIGTERM,
    environment: Mapping[str, str] | None = None,
    stdout: int | None = None,
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a child with its output in ``log``; in the end stop it, and what it started and left behind."""
    env = {**os.environ, "PYTHONPATH": str(ROOT), **(environment or {})}
    with log.open("ab") as out:
        child = subprocess.Popen(
            [str(word) for word in command], stdout=stdout or out, stderr=out, env=env, cwd=ROOT, start_new_session=True
        )
    try:
        yield child
    finally:
        child.send_signal(stop)
        with suppress(subprocess.TimeoutExpired):
            child.wait(20)
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)  # its own group: nothing but what it started
        child.wait()


@contextmanager
def server(kind: str, folder: Path, *flags: str) -> Iterator[tuple[int, str]]:
    """A fresh ``postgres`` or ``kafka`` on loopback by our own launcher (servers.py); its pid and where it is."""
    command = [os.environ[PYTHON], "-m", "bench.peers.servers", kind, folder / kind, *flags]
    with service(command, folder / f"{kind}-launcher.log", stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        line = child.stdout.readline()
        if not line:
            raise RuntimeError((folder / f"{kind}-launcher.log").read_text())
        told = json.loads(line)
        yield int(told["pid"]), str(told["url"])


def log_lateness(started: float, seconds: float) -> None:
    """Called where a timer's workflow ends, in whatever process: how much later that is than planned."""
    with open(os.environ[TIMER_LOG], "a") as out:
        out.write(f"{time.time() - (started + seconds)}\n")


def edges(marks: Sequence[float], most: int = 500) -> dict[str, float]:
    """Time per step of one long workflow, and of its first and its last 500 steps."""
    count = min(most, (len(marks) - 1) // 2)
    first, last = (marks[count] - marks[0]) / count, (marks[-1] - marks[-1 - count]) / count
    every = (marks[-1] - marks[0]) / (len(marks) - 1)
    return {"ms_per_step": every * 1e3, "first_ms": first * 1e3, "last_ms": last * 1e3, "last_over_first": last / first}
