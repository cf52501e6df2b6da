"""Faults of our own processes: killed, frozen, replaced, with a clock that is wrong."""

from __future__ import annotations

import random
import signal
from collections.abc import Iterator
from contextlib import contextmanager

from chaos.fleet import Place
from chaos.world import World

_SKEWS_S = (-86_400, -3_600, -30, 30, 3_600, 86_400)


@contextmanager
def kill_coordinator(world: World, dice: random.Random) -> Iterator[str]:
    """kill -9 of a coordinator, and another one in its place."""
    with _killed(world, [dice.choice(world.fleet.owners())]) as told:
        yield told


@contextmanager
def kill_worker(world: World, dice: random.Random) -> Iterator[str]:
    """kill -9 of a worker, and another one in its place."""
    with _killed(world, [dice.choice(world.fleet.of("worker", "serve"))]) as told:
        yield told


@contextmanager
def kill_half(world: World, dice: random.Random) -> Iterator[str]:
    """kill -9 of half of all processes at once."""
    places = world.fleet.of()
    with _killed(world, dice.sample(places, len(places) // 2)) as told:
        yield told


@contextmanager
def _killed(world: World, places: list[Place]) -> Iterator[str]:
    for place in places:
        world.fleet.kill(place)
    try:
        yield ", ".join(place.name for place in places)
    finally:
        for place in places:
            world.fleet.start(place)
        world.fleet.until_running()


@contextmanager
def freeze(world: World, dice: random.Random) -> Iterator[str]:
    """SIGSTOP for longer than the session: a zombie, which wakes up and does not know it."""
    place = dice.choice(world.fleet.of())
    world.fleet.signal(place, signal.SIGSTOP)
    try:
        yield place.name
    finally:
        world.fleet.signal(place, signal.SIGCONT)


@contextmanager
def rolling_restart(world: World, dice: random.Random) -> Iterator[str]:
    """SIGTERM to one after the other, each replaced before the next one goes."""
    places = world.fleet.of()
    dice.shuffle(places)
    yield ", ".join(place.name for place in places)
    for place in places:
        world.fleet.end(place)
        world.fleet.start(place)
        world.fleet.until_running()


@contextmanager
def clock(world: World, dice: random.Random) -> Iterator[str]:
    """The wall clock of a process jumps by up to a day, and back."""
    name, skew = dice.choice(sorted(world.clock_files)), dice.choice(_SKEWS_S)
    file = world.clock_files[name]
    file.write_text(f"{skew:+d}\n", encoding="ascii")
    try:
        yield f"{name} {skew:+d} s"
    finally:
        file.write_text("+0\n", encoding="ascii")
