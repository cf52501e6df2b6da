"""Running ``ductor-stream`` as a user does: processes in a folder, with nothing of ours in the environment."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from support import until

COMMAND = [sys.executable, "-m", "ductor_stream.cli.main"]
ANSWER_WITHIN_S = 60


def clean_environment() -> dict[str, str]:
    """Our environment without settings of ours, but for where fetched things are cached, and whose ports are whose."""
    kept = ("DUCTOR_CACHE_DIR", "DUCTOR_DEV_PORTS", "DUCTOR_POSTGRES_BIN", "DUCTOR_MAVEN_REPOSITORY")
    return {name: value for name, value in os.environ.items() if not name.startswith("DUCTOR_") or name in kept}


class Folder:
    """A project's folder in which commands are run."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a command to its end."""
        return subprocess.run(
            [*COMMAND, *arguments],
            cwd=self.path,
            env=clean_environment(),
            capture_output=True,
            text=True,
            timeout=ANSWER_WITHIN_S,
            check=False,
        )

    def ok(self, *arguments: str) -> str:
        """Run a command that must succeed; gives its output."""
        done = self.run(*arguments)
        assert done.returncode == 0, f"{arguments} ended with {done.returncode}: {done.stderr}"
        return done.stdout

    def json(self, *arguments: str) -> Any:
        """The same with ``--json``, decoded."""
        return json.loads(self.ok(*arguments, "--json"))

    def start(self, *arguments: str, name: str = "") -> subprocess.Popen[bytes]:
        """Start a command that goes on; its output goes to files of that name, else of the command's."""
        name = name or arguments[0]
        with (self.path / f"{name}.out").open("wb") as out, (self.path / f"{name}.err").open("wb") as err:
            return subprocess.Popen(
                [*COMMAND, *arguments], cwd=self.path, env=clean_environment(), stdout=out, stderr=err
            )

    def output(self, name: str) -> str:
        """What a command that goes on has printed."""
        return (self.path / f"{name}.out").read_text(encoding="utf-8")

    def errors(self, name: str) -> str:
        """What it has told on standard error."""
        return (self.path / f"{name}.err").read_text(encoding="utf-8", errors="replace")

    def dev(self, app: str, *options: str) -> tuple[subprocess.Popen[bytes], dict[str, str]]:
        """Start ``dev --json``, and wait for its line."""
        process = self.start("dev", app, "--json", *options)

        def ready() -> str:
            if process.poll() is not None:
                raise RuntimeError(f"dev has ended: {self.errors('dev')}")
            return self.output("dev").strip()

        return process, json.loads(until(ready, within_ms=90_000, what="dev"))

    @contextmanager
    def running(self, app: str, *options: str) -> Iterator[dict[str, str]]:
        """``dev`` for as long as the block lasts; ended by Ctrl-C."""
        process, ready = self.dev(app, *options)
        try:
            yield ready
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(60)


def descendants(pid: int) -> list[int]:
    """Pids of all processes below one."""
    listed = subprocess.run(["ps", "-A", "-o", "pid=,ppid="], capture_output=True, text=True, check=True).stdout
    pairs = [tuple(map(int, line.split())) for line in listed.splitlines()]
    found, level = [], {pid}
    while level:
        level = {child for child, parent in pairs if parent in level}
        found += sorted(level)
    return found


def alive(pids: list[int]) -> list[int]:
    """Those of the processes that run (a zombie does not)."""
    states = subprocess.run(["ps", "-A", "-o", "pid=,stat="], capture_output=True, text=True, check=True).stdout
    running = {int(pid) for pid, state in (line.split() for line in states.splitlines()) if not state.startswith("Z")}
    return [pid for pid in pids if pid in running]
