"""The first start of ``dev`` on a machine trains the JVM's cache: it says so, and leaves nothing when it is ended."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from e2e.commands import COMMAND, clean_environment
from support import until

from ductor_stream.dev.jars import ensure_jars, jar_folder
from ductor_stream.dev.process import command_line

APP = 'from ductor_stream import App\napp = App("shop")\n@app.step\ndef f() -> None: ...\n'


class FirstStart:
    """A ``dev`` or ``demo`` on a machine that has the jars and nothing else."""

    def __init__(self, folder: Path, *command: str) -> None:
        self.cache = folder / "cache"
        self.folder = folder / "shop"
        self.folder.mkdir()
        (self.folder / "shop.py").write_text(APP, encoding="utf-8")
        self.cache.mkdir()
        jar_folder(self.cache).symlink_to(ensure_jars()[0].parent)
        self.environment = clean_environment() | {"DUCTOR_CACHE_DIR": str(self.cache)}
        with (folder / "err").open("wb") as told:
            self.process = subprocess.Popen(
                [*COMMAND, *command], cwd=self.folder, env=self.environment, stdout=subprocess.DEVNULL, stderr=told
            )
        self.told = folder / "err"

    def call(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*COMMAND, *arguments],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def machines(self) -> list[int]:
        """JVMs that work in the cache folder."""
        pids = [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]
        return [pid for pid in pids if "java" in command_line(pid) and str(self.cache) in command_line(pid)]

    def trains(self) -> bool:
        assert self.process.poll() is None, self.told.read_text(encoding="utf-8")
        return bool(self.machines() and list(self.cache.glob("aot/train-*/log/meta.properties")))

    def left(self) -> list[object]:
        return [*self.machines(), *self.cache.glob("aot/train-*"), *self.cache.glob("aot/*.aot")]


@pytest.fixture
def first_start(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[FirstStart]:
    started = FirstStart(tmp_path, *getattr(request, "param", ("dev", "shop:app")))
    try:
        yield started
    finally:
        started.process.kill()
        started.process.wait()


def test_kill_9_while_it_trains_leaves_neither_jvm_nor_folder(first_start: FirstStart) -> None:
    until(first_start.trains, within_ms=60_000)
    assert "preparing the fast start of Kafka's JVM" in first_start.told.read_text(encoding="utf-8")
    beside = first_start.call("runs", "list")
    assert (beside.returncode, "is starting" in beside.stderr) == (2, True)
    second = first_start.call("dev", "shop:app")
    assert (second.returncode, len(second.stderr.splitlines())) == (1, 2)
    assert f"is in use by process {first_start.process.pid}" in second.stderr
    assert "`dev stop` ends it" in second.stderr
    first_start.process.kill()
    until(lambda: not first_start.left(), what="that nothing is left")


@pytest.mark.parametrize("by", ["stop", "ctrl-c"])
def test_ended_while_it_trains_it_ends_at_once(first_start: FirstStart, by: str) -> None:
    until(first_start.trains, within_ms=60_000)
    if by == "stop":
        assert first_start.call("dev", "stop").returncode == 0
    else:
        first_start.process.send_signal(signal.SIGINT)
    assert first_start.process.wait(60) == 130
    until(lambda: not first_start.left(), what="that nothing is left")
    assert len(first_start.told.read_text(encoding="utf-8").splitlines()) == 1


@pytest.mark.parametrize("first_start", [("demo",)], indirect=True)
def test_a_demo_ended_while_it_trains_ends_at_once(first_start: FirstStart) -> None:
    until(first_start.trains, within_ms=60_000)
    first_start.process.send_signal(signal.SIGINT)
    assert first_start.process.wait(60) == 130
    until(lambda: not first_start.left(), what="that nothing is left")
