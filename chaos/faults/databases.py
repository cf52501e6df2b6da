"""Faults of Postgres. Each is mended when a standby confirms commits again, so that the next promotion loses nothing."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

from chaos.network import Weather
from chaos.postgres import NAMES
from chaos.world import World


@contextmanager
def crash(world: World, dice: random.Random) -> Iterator[str]:
    """The primary ends without a checkpoint, and comes back."""
    world.postgres.primary.server.kill()
    try:
        yield world.postgres.primary.name
    finally:
        world.postgres.revive()


@contextmanager
def failover(world: World, dice: random.Random) -> Iterator[str]:
    """The primary is gone for good; its standby is promoted, and gets a standby of its own."""
    old = world.postgres.primary
    old.server.kill()
    world.postgres.promote()
    try:
        yield f"{old.name} → {world.postgres.primary.name}"
    finally:
        world.postgres.attach()


@contextmanager
def split_brain(world: World, dice: random.Random) -> Iterator[str]:
    """The standby is promoted while the primary lives on, cut off from it, with all its clients."""
    old = world.postgres.primary
    with world.network.weather(*NAMES, Weather("cut")):
        world.postgres.promote()
        try:
            yield f"{old.name} and {world.postgres.primary.name}"
        finally:
            old.server.kill()
    world.postgres.attach()


@contextmanager
def disk_full(world: World, dice: random.Random) -> Iterator[str]:
    """The file system of the primary, its WAL included, has no byte left."""
    node = world.postgres.primary
    node.disk.fill()
    try:
        yield node.name
    finally:
        node.disk.free()
        world.postgres.revive()
