"""An owner that notes when it was assigned partitions, and when its first commit of a run after that had landed.

Takes the arguments of the product's command line, which it runs; started by measures/idle.py in the place of
``coordinator`` or ``serve``. Moments (``time.monotonic``) go as JSON to the file that ``BENCH_STAMPS`` names.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

from ductor_stream.cli.main import main
from ductor_stream.coordinator.ownership import Ownership
from ductor_stream.coordinator.prepared import Prepared
from ductor_stream.coordinator.service import Coordinator
from ductor_stream.coordinator.work import Work


class Stamps:
    """The first assignment, and the first commit with a run in it."""

    def __init__(self, out: Path) -> None:
        self._out = out
        self._assigned = 0.0
        self._written = False

    def assigned(self) -> None:
        """The group has given partitions to this process."""
        self._assigned = self._assigned or time.monotonic()

    def committed(self, runs: int) -> None:
        """A commit of so many runs has landed."""
        if runs and not self._written:
            self._written = True
            scratch = self._out.with_suffix(".new")
            scratch.write_text(json.dumps({"assigned": self._assigned, "committed": time.monotonic()}))
            scratch.rename(self._out)


def place(stamps: Stamps) -> None:
    """Have both moments told."""
    assigned, committed = Ownership.assigned, Coordinator.committed

    def assigned_now(self: Ownership, partitions: frozenset[int]) -> None:
        if partitions:
            stamps.assigned()
        assigned(self, partitions)

    def committed_now(self: Coordinator, work: Work, prepared: Prepared, now: int) -> None:
        stamps.committed(len(prepared.batch.runs))
        committed(self, work, prepared, now)

    Ownership.assigned = assigned_now  # type: ignore[method-assign]
    Coordinator.committed = committed_now  # type: ignore[method-assign]


if __name__ == "__main__":
    place(Stamps(Path(os.environ["BENCH_STAMPS"])))
    main()
