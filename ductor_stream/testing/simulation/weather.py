"""What befalls a whole world, at any step of anybody: outages, rebalances, clocks that jump, and the like."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ductor_stream.testing.simulation.world import World


class Weather:
    """Each kind of sky comes at its own rate per step; at which step it comes next is drawn when it has come."""

    def __init__(self, world: World, skies: Mapping[str, Callable[[], None]]) -> None:
        self._world = world
        self._skies = {kind: happens for kind, happens in skies.items() if world.knows(kind)}
        self._at = {kind: world.gap(kind) for kind in self._skies}
        self._steps = 0
        self._next = min(self._at.values(), default=0)

    def step(self) -> None:
        """Another step of the storm is about to be taken. What happens may take steps of its own."""
        self._steps += 1
        if self._steps == self._next and self._world.faulty:
            self._change(self._steps)

    def _change(self, now: int) -> None:
        coming = [kind for kind, at in self._at.items() if at == now]
        self._at.update((kind, now + self._world.gap(kind)) for kind in coming)
        self._next = min(self._at.values())
        for kind in coming:
            if self._world.fires(kind):
                self._skies[kind]()
