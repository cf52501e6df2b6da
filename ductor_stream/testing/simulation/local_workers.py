"""``ports.LocalWorkers`` of a simulated process: attempts by SyncMatch, which die with it."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Sequence

from ductor_stream.ports import Outgoing
from ductor_stream.testing.simulation.memory_broker import Broker
from ductor_stream.testing.simulation.workers import Fleet, task_in
from ductor_stream.testing.simulation.world import World

_STEPS = ("a", "b", "d")
_BEAT_US = 3_000_000
_LOOK_US = 500_000


class LocalFleet:
    """Slots of one process. ``wait`` hears until when nothing comes from here."""

    def __init__(self, world: World, broker: Broker, fleet: Fleet, wait: Callable[[int], None]) -> None:
        self._world, self._broker, self._fleet, self._wait = world, broker, fleet, wait
        self._slots = world.rng.randint(1, 4)
        self._reserved = self._running = self._number = 0
        self._coming: list[tuple[int, int, bool, bytes, bytes]] = []
        self._diverted: set[bytes] = set()

    def reserve(self, queue: str, step: str) -> bool:
        """Keep one slot, if one is free and the step is known here."""
        if queue != "default" or step not in _STEPS or self._reserved + self._running >= self._slots:
            return False
        self._reserved += 1
        return True

    def cancel_reservation(self, queue: str) -> None:
        """Give a reserved slot back."""
        self._reserved -= 1

    def run_all(self, tasks: Iterable[tuple[bytes, bytes, Sequence[tuple[str, bytes]]]]) -> None:
        """Begin attempts in reserved slots."""
        for task, key, _ in tasks:
            self._run(task, key)

    def _run(self, task: bytes, key: bytes) -> None:
        topics = self._broker.names
        self._broker.handed([Outgoing(topics.tasks("default"), key, task)])
        self._reserved -= 1
        self._running += 1
        told = task_in(task)
        assert told is not None
        us, outcome = self._fleet.execute(told)
        for at in range(1_000_000, us, _BEAT_US):
            self._plan(at, False, key, self._fleet.said(told, {"type": "attempt.heartbeat"}))
        self._plan(us, True, key, self._fleet.said(told, {"type": "attempt.finished", **outcome}))

    def _plan(self, us: int, last: bool, key: bytes, value: bytes) -> None:
        self._number += 1
        heapq.heappush(self._coming, (self._world.us + us, self._number, last, key, value))

    def results(self, timeout: float) -> list[tuple[bytes, bytes]]:
        """What has come by now; what belongs to a partition that was given away goes by the topic."""
        found: list[tuple[bytes, bytes]] = []
        while self._coming and self._coming[0][0] <= self._world.us:
            _, _, last, key, value = heapq.heappop(self._coming)
            self._running -= last
            if key in self._diverted:
                self._broker.append(self._broker.names.attempt_results, key, value)
            else:
                found.append((key, value))
        if not found and timeout > 0 and self._coming:
            self._wait(min(self._coming[0][0], self._world.us + _LOOK_US))
        return found

    def busy(self) -> int:
        """How many attempts run here now."""
        return self._running

    def divert(self, partition_keys: Iterable[bytes]) -> None:
        """Results of these runs' attempts go by the topic from now on."""
        self._diverted.update(partition_keys)
