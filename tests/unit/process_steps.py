"""Steps that run in processes of their own: what they do to theirs must not reach the worker."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NoReturn

from ductor_stream import App, TerminalError, current_attempt

app = App("t")


@app.step(executor="process")
def where(word: str) -> list[str | int]:
    """Says which process runs it, and what it sees of its attempt."""
    attempt = current_attempt()
    attempt.log.warning("here")
    return [os.getpid(), word, attempt.run_id, attempt.idempotency_key]


@app.step(executor="process")
def declined() -> None:
    """Fails by a rule."""
    raise TerminalError("no", type="CardDeclined", details={"code": 51})


@app.step(executor="process")
def leaves() -> NoReturn:
    """SystemExit is an exception like any other."""
    sys.exit(3)


@app.step(executor="process")
def crashes() -> None:
    """Reads where nothing is."""
    ctypes.string_at(0)


@app.step(executor="process")
def ends(status: int) -> NoReturn:
    """Goes without a word."""
    os._exit(status)


@app.step(executor="process")
def signals(number: int) -> None:
    """Ends by a signal."""
    os.kill(os.getpid(), number)


@app.step(executor="process")
def forever(told: str) -> None:
    """Computes until it is killed, with a program that it has started; says who both are."""
    program = subprocess.Popen([sys.executable, "-c", "import threading; threading.Event().wait()"])
    Path(told).write_text(f"{os.getpid()} {program.pid}", "utf-8")
    while True:
        pass


@app.step(executor="process", heartbeat=30)
def beats() -> int:
    """Says how far it is."""
    current_attempt().heartbeat({"page": 17})
    try:
        current_attempt().heartbeat(object())
    except Exception as error:  # noqa: BLE001 - any would be told
        return len(str(error))
    return 0


@app.step(executor="process")
def odd() -> Any:
    """Returns what cannot be written."""
    return time


renamed = app.step(executor="process", name="other-name")(lambda: "found")
