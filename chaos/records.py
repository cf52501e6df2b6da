"""What is recorded while chaos reigns: lines of JSON, each with the machine's monotonic time, in files of a folder.

Every process appends to a file of its own, one unbuffered write a line, so that ``kill -9`` costs at most the line that
was under way. The monotonic clock is the same for all processes of a machine, and no fault sets it.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any


class Recorder:
    """Appends to ``folder/name.jsonl``. Safe for use by several threads."""

    def __init__(self, folder: Path, name: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._file = (folder / f"{name}.jsonl").open("ab", buffering=0)
        self._lock = threading.Lock()

    def note(self, what: str, **more: Any) -> None:
        """One line: ``what`` happened, now."""
        line = json.dumps({"at": time.monotonic(), "what": what, **more}).encode() + b"\n"
        with self._lock:
            self._file.write(line)

    def close(self) -> None:
        """Nothing more will be noted."""
        self._file.close()


def recorded(folder: Path) -> Iterator[dict[str, Any]]:
    """All lines of all files; one that a kill has cut off is passed over."""
    for path in sorted(folder.glob("*.jsonl")):
        with path.open("rb") as file:
            for line in file:
                if line.endswith(b"\n"):
                    yield json.loads(line)
