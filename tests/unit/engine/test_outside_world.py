"""What a workflow reaches for outside of itself suspends its run, with its line and "do this in a step"."""

from __future__ import annotations

import asyncio
import functools
import linecache
import os
import socket
import sqlite3
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from ductor_stream.errors import OutsideWorld
from unit.engine.driver import Driver
from unit.engine.programs import STEPS, workflow


def _calls(function: Callable[[], Any]) -> Callable[..., Any]:
    async def calls(run: Any) -> Any:
        return function()

    return calls


def _awaits(function: Callable[[], Any]) -> Callable[..., Any]:
    async def awaits(run: Any) -> Any:
        return await function()

    return awaits


REACHES: dict[str, Callable[..., Any]] = {
    "open()": _calls(lambda: open(__file__)),  # noqa: SIM115 - it never opens
    "Path.read_text": _calls(lambda: Path(__file__).read_text()),
    "open() in exec": _calls(lambda: exec(f"open({__file__!r})", {})),  # noqa: S102 - code of no module
    "os.listdir()": _calls(lambda: os.listdir(".")),
    "os.remove()": _calls(lambda: os.remove("/nowhere/at/all")),
    "os.rename()": _calls(lambda: os.rename("/nowhere/at/all", "/nowhere/else")),
    "socket.socket()": _calls(socket.socket),
    "socket.getaddrinfo()": _calls(lambda: socket.getaddrinfo("127.0.0.1", 80)),
    "subprocess.Popen()": _calls(lambda: subprocess.run(["true"], check=False)),
    "os.system()": _calls(lambda: os.system("true")),
    "sqlite3.connect()": _calls(lambda: sqlite3.connect(":memory:")),
    "asyncio.to_thread": _awaits(lambda: asyncio.to_thread(print)),
    "asyncio.open_connection": _awaits(lambda: asyncio.open_connection("127.0.0.1", 9)),
    "asyncio.create_subprocess_exec": _awaits(lambda: asyncio.create_subprocess_exec("true")),
    "loop.run_in_executor": _awaits(lambda: asyncio.get_running_loop().run_in_executor(None, print)),
}
# Older interpreters do not announce these.
if sys.version_info >= (3, 12):
    REACHES["threading.Thread.start()"] = _calls(lambda: threading.Thread(target=print).start())
if sys.version_info >= (3, 13):
    REACHES["time.sleep()"] = _calls(functools.partial(time.sleep, 0))
ANNOUNCED_AS = {"Path.read_text": "open()", "open() in exec": "open()"}


@pytest.mark.parametrize("what", list(REACHES))
def test_it_suspends_the_run_and_says_what_to_do(what: str) -> None:
    driver = Driver(workflow(REACHES[what]))
    driver.start()
    code, message = driver.parked
    assert (driver.status, code) == ("suspended", "bug")
    assert message.startswith("OutsideWorld: ")
    assert ANNOUNCED_AS.get(what, what) in message
    assert "do this in a step" in message
    assert f"(at {__file__}:" in message


def test_the_run_may_catch_it_and_replays_the_same() -> None:
    async def careful(run: Any) -> Any:
        try:
            os.listdir(".")
        except OutsideWorld:
            return await run.step(STEPS["a"], "reads the file")

    driver = Driver(workflow(careful))
    driver.start()
    driver.lose()
    driver.finish("1", "read")
    assert driver.result == "read"


def test_imports_time_zones_and_tracebacks_are_no_reach() -> None:
    for module in ("colorsys", "zoneinfo"):
        sys.modules.pop(module, None)
    linecache.clearcache()

    async def ordinary(run: Any) -> Any:
        import colorsys

        try:
            raise ValueError("shown")
        except ValueError:
            text = traceback.format_exc()
        ZoneInfo.clear_cache()
        return [ZoneInfo("Europe/Berlin").key, "raise ValueError" in text, colorsys.rgb_to_hsv(0, 0, 0)]

    driver = Driver(workflow(ordinary))
    driver.start()
    assert driver.result == ["Europe/Berlin", True, [0.0, 0.0, 0]]


def test_a_debugger_around_the_loop_permits_nothing() -> None:
    driver = Driver(workflow(REACHES["open()"]))
    exec("driver.start()", {"__name__": "pdb", "driver": driver})  # noqa: S102 - a frame of the debugger's
    assert "open()" in driver.parked[1]


def test_nobody_else_is_watched(tmp_path: Path) -> None:
    """The code around a tick, and other threads while a tick is under way, do as they like."""
    began, written = threading.Event(), threading.Event()
    found = tmp_path / "written"

    def beside() -> None:
        began.wait(5)
        found.write_text("by another thread")
        written.set()

    async def waits_for_it(run: Any) -> bool:
        began.set()
        return written.wait(5)

    other = threading.Thread(target=beside)
    other.start()
    driver = Driver(workflow(waits_for_it))
    driver.start()
    other.join()
    assert driver.result is True
    assert found.read_text() == "by another thread"
