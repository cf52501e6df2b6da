"""A steady stream of orders beside what a test does to the processes that handle them."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from fleet import Fleet
from rig import CRC32, HOME, Rig

STEPS = 6
EVERY_S = 0.02


class Load:
    """Orders come in, one after the other, until the block is left. ``ids`` are those that were sent."""

    def __init__(self, rig: Rig) -> None:
        self.ids: list[str] = []
        self._rig = rig
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        while not self._ending.wait(EVERY_S):
            count = len(self.ids)
            run_id, how = f"order-{count}", CRC32 if count % 2 else HOME
            what = {"steps": STEPS, "fine": count % 5 == 0}
            self._rig.start(run_id, workflow="order", input=what, partitioner=how)
            self.ids.append(run_id)

    @contextmanager
    def flowing(self) -> Iterator[None]:
        """All is sent when the block has been left."""
        self._thread.start()
        yield
        self._ending.set()
        self._thread.join(60)
        assert not self._thread.is_alive(), "no order can be sent any more"


def doubled(fleet: Fleet) -> dict[tuple[str, int], int]:
    """Attempts that were run more than once: by key and generation."""
    counts = Counter((each["key"], each["generation"]) for each in fleet.effects())
    return {attempt: count for attempt, count in counts.items() if count > 1}
