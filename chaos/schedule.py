"""Which faults, when and for how long: drawn beforehand by a seed, then played in threads."""

from __future__ import annotations

import random
import threading
import time
import traceback
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from chaos.faults import EVERYTHING, FAULTS
from chaos.world import World

GAP_S = (1.0, 5.0)
"""Between the beginnings of two faults that may reign at the same time."""
_LOOK_S = 0.1


@dataclass(frozen=True)
class Planned:
    """One fault to come: ``after_s`` seconds after the one before it has begun, as soon as its claims are free."""

    number: int
    name: str
    after_s: float
    hold_s: float
    seed: int


def drawn(seed: int, names: Sequence[str], count: int) -> list[Planned]:
    """The first ``count`` faults of a seed. Each kind comes once before any comes twice. Same seed, same faults."""
    dice = random.Random(seed)
    found: list[Planned] = []
    deck: list[str] = []
    while len(found) < count:
        if not deck:
            deck = list(names)
            dice.shuffle(deck)
        name = deck.pop()
        hold_s = dice.uniform(*FAULTS[name].hold_s)
        found.append(Planned(len(found) + 1, name, dice.uniform(*GAP_S), hold_s, dice.randrange(1 << 32)))
    return found


class Storm:
    """Plays planned faults in a world for a while. ``errors`` are faults that could not begin or be mended."""

    def __init__(self, world: World, faults: Sequence[Planned]) -> None:
        self._world, self._faults = world, list(faults)
        self._locks = {claim: threading.Lock() for claim in sorted(EVERYTHING)}
        self._threads: list[threading.Thread] = []
        self.errors: list[str] = []
        self.played = 0

    def play(self, seconds: float) -> None:
        """Begin faults for so long, then wait until all are mended."""
        deadline = time.monotonic() + seconds
        for planned in self._faults:
            if not self._pause(planned.after_s, deadline) or self.errors:
                break
            taken = self._take(planned, deadline)
            if taken is None:
                break
            thread = threading.Thread(
                target=self._one, args=(planned, taken), name=f"chaos-{planned.name}", daemon=True
            )
            thread.start()
            self._threads.append(thread)
        for thread in self._threads:
            thread.join()

    def _pause(self, seconds: float, deadline: float) -> bool:
        until = time.monotonic() + seconds
        while (now := time.monotonic()) < until:
            if now >= deadline:
                return False
            time.sleep(min(_LOOK_S, until - now))
        return True

    def _take(self, planned: Planned, deadline: float) -> ExitStack | None:
        """All of its claims, in one order for all, so that nobody waits for each other. None: time is up."""
        with ExitStack() as stack:
            for claim in sorted(FAULTS[planned.name].claims):
                lock = self._locks[claim]
                while not lock.acquire(timeout=_LOOK_S):
                    if time.monotonic() >= deadline:
                        return None
                stack.callback(lock.release)
            return stack.pop_all()

    def _one(self, planned: Planned, taken: ExitStack) -> None:
        fault, recorder = FAULTS[planned.name], self._world.recorder
        with taken:
            recorder.note("fault", number=planned.number, name=planned.name)
            try:
                with fault.begin(self._world, random.Random(planned.seed)) as told:
                    self.played += 1
                    recorder.note("holds", number=planned.number, told=told)
                    self._world.say(f"{planned.number:4}. {planned.name}: {told}")
                    time.sleep(planned.hold_s)
                    recorder.note("mending", number=planned.number)
            except Exception:  # noqa: BLE001 - chaos that cannot be mended is told, and ends the storm
                self.errors.append(f"{planned.number}. {planned.name}: {traceback.format_exc()}")
            recorder.note("mended", number=planned.number)
