"""How the steps of the tests' apps tell of their effects, in a way that survives ``kill -9`` of their process."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from typing import Any

from ductor_stream import current_attempt

FOLDER = Path(os.environ["EFFECTS_FOLDER"])
"""Each process appends to a file of its own here."""

_lock = threading.Lock()


def effect(**more: Any) -> None:
    """The step has done what cannot be undone: one line, written at once."""
    attempt = current_attempt()
    line = {"key": attempt.idempotency_key, "run": attempt.run_id, "generation": attempt.generation, **more}
    with _lock, (FOLDER / f"{os.getpid()}.jsonl").open("ab", buffering=0) as file:
        file.write(json.dumps(line | {"pid": os.getpid()}).encode() + b"\n")


def until_file(name: str) -> None:
    """Wait, in a thread, until the test has made that file beside the effects' folder."""
    waiting = threading.Event()
    while not (FOLDER.parent / name).exists():
        waiting.wait(0.02)
