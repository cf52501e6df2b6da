"""A scenario: a namespace and a database of its own, a fleet on it, and the load. Everything is gone afterwards."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from bench.accounting import Meter
from bench.app import app
from bench.fleet import Fleet, Shape
from bench.load import Load
from bench.servers import Servers
from ductor_stream.config import Settings, load
from ductor_stream.kafka.topics import DEFAULT_PARTITIONS, create_topics, delete_topics
from ductor_stream.store.migrate import migrate
from ductor_stream.wiring.topics import admin_config, planned


@dataclass(frozen=True)
class Ground:
    """A namespace whose topics and tables are there, and nobody in it yet."""

    servers: Servers
    settings: Settings
    environment: dict[str, str]

    @property
    def database(self) -> str:
        """The database's URL."""
        return self.settings.need_database()

    @property
    def partitions(self) -> int:
        """Of the inbound topics."""
        return self.settings.partitions or DEFAULT_PARTITIONS

    def server_pids(self) -> dict[str, list[int]]:
        """The servers by role, and this process, which is the load."""
        kafka, postgres = self.servers.kafka.pid, self.servers.postgres.pid
        assert kafka is not None and postgres is not None, "a server has ended"
        return {"broker": [kafka], "postgres": [postgres], "load": [os.getpid()]}


@contextmanager
def prepared(servers: Servers, partitions: int | None = None) -> Iterator[Ground]:
    """A fresh namespace; ``partitions`` None is the shipped default."""
    with servers.database() as url:
        namespace = f"bench-{secrets.token_hex(3)}"
        own = {
            "DUCTOR_KAFKA_BOOTSTRAP": servers.kafka.bootstrap,
            "DUCTOR_DATABASE_URL": url,
            "DUCTOR_NAMESPACE": namespace,
            "DUCTOR_LOG_LEVEL": "warning",
        }
        if partitions is not None:
            own["DUCTOR_PARTITIONS"] = str(partitions)
        settings = load(own)
        migrate(settings.need_database())
        admin, plans = admin_config(app, settings), planned(app, settings)
        create_topics(admin, plans)
        try:
            yield Ground(servers, settings, own)
        finally:
            delete_topics(admin, [each.name for each in plans])


@dataclass(frozen=True)
class Scenario:
    """A running fleet under a load."""

    ground: Ground
    shape: Shape
    fleet: Fleet
    load: Load

    def meter(self) -> Meter:
        """A meter over all processes that there are now, counting commits of this database."""
        return Meter({**self.ground.server_pids(), **_owners_first(self.fleet.pids())}, self.ground.database)


def _owners_first(pids: dict[str, list[int]]) -> dict[str, list[int]]:
    return {role: pids[role] for role in ("coordinator", "serve", "worker") if role in pids}


@contextmanager
def staffed(servers: Servers, shape: Shape, watched: Mapping[str, str] | None = None) -> Iterator[tuple[Ground, Fleet]]:
    """Start all processes of that shape on a ground of their own, and return when they are ready.

    ``watched``: run its coordinators by profiled.py, with this in their environment.
    """
    with ExitStack() as stack:
        servers.checkpoint()
        ground = stack.enter_context(prepared(servers, shape.partitions))
        folder = servers.folder / ground.environment["DUCTOR_NAMESPACE"]
        folder.mkdir()
        fleet = Fleet(folder, {**ground.environment, **(watched or {})})
        module = "bench.profiled" if watched else "ductor_stream.cli.main"
        stack.callback(fleet.stop)
        for _ in range(shape.coordinators):
            fleet.start("coordinator" if shape.mode == "kafka" else "serve", shape.concurrency, module)
        for _ in range(shape.workers):
            fleet.start("worker", shape.concurrency)
        fleet.await_ready(ground.partitions)
        yield ground, fleet


@contextmanager
def opened(servers: Servers, shape: Shape, watched: Mapping[str, str] | None = None) -> Iterator[Scenario]:
    """As ``staffed``, with the load of this process."""
    with staffed(servers, shape, watched) as (ground, fleet):
        listener = Load(ground.settings, ground.settings.topics(app.namespace))
        try:
            yield Scenario(ground, shape, fleet, listener)
        finally:
            listener.close()
