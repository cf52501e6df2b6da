"""Faults of the network, between any two processes that talk to each other."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from chaos import brokers
from chaos.network import KINDS, Weather
from chaos.postgres import NAMES
from chaos.world import World

_BROKERS = tuple(brokers.name(number) for number in range(1, brokers.COUNT + 1))


def pairs(world: World) -> list[tuple[str, str]]:
    """All that talk to each other."""
    found = [("client", broker) for broker in _BROKERS]
    for place in world.fleet.of():
        found += [(place.name, broker) for broker in _BROKERS]
        found += [(place.name, database) for database in NAMES if place.role != "worker"]
    found += [(a, b) for a in _BROKERS for b in _BROKERS if a < b]
    return [*found, NAMES]


@contextmanager
def between_two(world: World, dice: random.Random) -> Iterator[str]:
    """The network between two of them is cut, in one or both directions, refuses, or is slow."""
    (a, b), weather = dice.choice(pairs(world)), _weather(dice)
    with world.network.weather(a, b, weather):
        yield f"{a} – {b}: {_told(weather)}"


@contextmanager
def isolate(world: World, dice: random.Random) -> Iterator[str]:
    """One process loses everybody."""
    victim, weather = dice.choice(world.fleet.of()).name, _weather(dice)
    with ExitStack() as stack:
        for a, b in pairs(world):
            if victim in (a, b):
                stack.enter_context(world.network.weather(a, b, weather))
        yield f"{victim}: {_told(weather)}"


def _weather(dice: random.Random) -> Weather:
    return Weather(dice.choice(KINDS), dice.choice((0.05, 0.3, 1.0)))


def _told(weather: Weather) -> str:
    return f"slow, {weather.delay_s:g} s a piece" if weather.kind == "slow" else weather.kind
