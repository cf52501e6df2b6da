"""Crowds of strangers that connect, and leave no room."""

from __future__ import annotations

import random
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

import psycopg

from chaos.world import World

_KAFKA_SOCKETS = 300


@contextmanager
def on_postgres(world: World, dice: random.Random) -> Iterator[str]:
    """As many sessions as Postgres gives, so that nobody else gets another one."""
    with ExitStack() as stack:
        count = 0
        with suppress(psycopg.Error):
            while count < 500:
                connection = psycopg.connect(world.postgres.primary.url(), connect_timeout=2)
                stack.callback(connection.close)
                count += 1
        yield f"{count} sessions"


@contextmanager
def on_kafka(world: World, dice: random.Random) -> Iterator[str]:
    """Hundreds of connections to the brokers that say nothing."""
    addresses = [address.rpartition(":") for address in world.brokers.bootstrap.split(",")]
    with ExitStack() as stack:
        count = 0
        for number in range(_KAFKA_SOCKETS):
            host, _, port = addresses[number % len(addresses)]
            with suppress(OSError):
                stack.enter_context(socket.create_connection((host, int(port)), timeout=2))
                count += 1
        yield f"{count} connections"
