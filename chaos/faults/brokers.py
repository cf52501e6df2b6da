"""Faults of Kafka's brokers. Each is mended when all replicas are in sync again."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from confluent_kafka import ElectionType, KafkaException

from chaos.brokers import COUNT, name
from chaos.world import World


@contextmanager
def kill(world: World, dice: random.Random) -> Iterator[str]:
    """kill -9 of a broker."""
    number = dice.randint(1, COUNT)
    world.brokers.kill(number)
    try:
        yield name(number)
    finally:
        world.brokers.restart(number)
        world.brokers.until_healthy()


@contextmanager
def kill_two(world: World, dice: random.Random) -> Iterator[str]:
    """kill -9 of two brokers of three: nothing can be acknowledged."""
    numbers = dice.sample(range(1, COUNT + 1), 2)
    for number in numbers:
        world.brokers.kill(number)
    try:
        yield ", ".join(map(name, numbers))
    finally:
        # At the same time: one alone gets no quorum, and is not ready before it has one.
        world.brokers.restart(*numbers)
        world.brokers.until_healthy()


@contextmanager
def restart(world: World, dice: random.Random) -> Iterator[str]:
    """A broker is stopped in good order and started again; then the preferred leaders lead again."""
    number = dice.randint(1, COUNT)
    yield name(number)
    world.brokers.restart(number)
    world.brokers.until_healthy()
    _elect_preferred(world)


@contextmanager
def freeze(world: World, dice: random.Random) -> Iterator[str]:
    """A broker stands still (SIGSTOP)."""
    number = dice.randint(1, COUNT)
    world.brokers.freeze(number)
    try:
        yield name(number)
    finally:
        world.brokers.thaw(number)
        world.brokers.until_healthy()


@contextmanager
def move_leaders(world: World, dice: random.Random) -> Iterator[str]:
    """All partitions are led by their preferred replicas again: a change of leaders without any broker ending."""
    yield "preferred replicas"
    _elect_preferred(world)
    world.brokers.until_healthy()


def _elect_preferred(world: World) -> None:
    with suppress(KafkaException):  # none needed: that is an error too
        world.brokers.admin.elect_leaders(ElectionType.PREFERRED, None).result(20)
