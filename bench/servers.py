"""The servers that everything is measured on: one Kafka and one Postgres of our own, on fresh data."""

from __future__ import annotations

import logging
import secrets
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Self
from urllib.parse import urlsplit, urlunsplit

import psycopg
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from psycopg import sql

from ductor_stream.dev import EmbeddedKafka, EmbeddedPostgres

POSTGRES_SETTINGS = {
    "shared_buffers": "1GB",
    "max_connections": "200",
    # Defaults, said here since the figures rest on them: a commit is on disk when it is acknowledged.
    "fsync": "on",
    "synchronous_commit": "on",
    "full_page_writes": "on",
    # When a transaction was committed, by Postgres's own clock: lateness and steps of a long run are read of it.
    "track_commit_timestamp": "on",
}
_WARMING_BATCH = 2_000
_log = logging.getLogger("bench.kafka")
_log.setLevel(logging.ERROR)  # what librdkafka has to say of a broker that just starts is of no interest


@dataclass(frozen=True)
class Servers:
    """Running servers. ``folder`` holds their data and the logs of everything that is started on them."""

    kafka: EmbeddedKafka
    postgres: EmbeddedPostgres
    folder: Path

    @contextmanager
    def database(self) -> Iterator[str]:
        """The URL of an empty database, which is dropped afterwards with whoever is still connected to it."""
        name = f"bench_{secrets.token_hex(4)}"
        with psycopg.connect(self.postgres.url, autocommit=True) as connection:
            connection.execute(sql.SQL("create database {}").format(sql.Identifier(name)))
        try:
            yield urlunsplit(urlsplit(self.postgres.url)._replace(path=f"/{name}"))
        finally:
            with psycopg.connect(self.postgres.url, autocommit=True) as connection:
                connection.execute(sql.SQL("drop database {} with (force)").format(sql.Identifier(name)))

    def checkpoint(self) -> None:
        """Write out what is dirty, so that one measure does not pay for the one before it."""
        with psycopg.connect(self.postgres.url, autocommit=True) as connection:
            connection.execute("checkpoint")

    def warm_broker(self, seconds: float) -> None:
        """Produce and consume for so long: a broker whose code is not compiled yet costs up to twice as much."""
        with self.topic("warm-up", 4) as name, PingPong(self.kafka.bootstrap, name) as game:
            deadline = time.monotonic() + seconds
            while time.monotonic() < deadline:
                game.play(_WARMING_BATCH)

    @contextmanager
    def topic(self, name: str, partitions: int) -> Iterator[str]:
        """A topic that is deleted afterwards."""
        name = f"{name}-{secrets.token_hex(4)}"
        admin = AdminClient({"bootstrap.servers": self.kafka.bootstrap}, logger=_log)
        admin.create_topics([NewTopic(name, partitions, 1)])[name].result(15)
        try:
            yield name
        finally:
            admin.delete_topics([name])[name].result(15)


@contextmanager
def running() -> Iterator[Servers]:
    """Start both servers on a temporary folder, which is removed at the end."""
    folder = Path(tempfile.mkdtemp(prefix="ductor-bench-"))
    # C2 is on (fast_start off): the broker is to run as it does in production.
    kafka = EmbeddedKafka(folder / "kafka", fast_start=False)
    postgres = EmbeddedPostgres(folder / "postgres", settings=POSTGRES_SETTINGS)
    try:
        kafka.start()
        postgres.start()
        yield Servers(kafka, postgres, folder)
    finally:
        kafka.stop()
        postgres.stop()
        shutil.rmtree(folder, ignore_errors=True)


class PingPong:
    """A producer and a consumer of one topic, in this thread. For use by ``with``."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self._topic = topic
        own = {"bootstrap.servers": bootstrap}
        self._consumer = Consumer({**own, "group.id": "bench", "enable.auto.commit": False}, logger=_log)
        self._producer = Producer({**own, "acks": "all", "enable.idempotence": True, "linger.ms": 0}, logger=_log)

    def __enter__(self) -> Self:
        partitions = self._consumer.list_topics(self._topic, 15).topics[self._topic].partitions
        self._consumer.assign([TopicPartition(self._topic, each, OFFSET_BEGINNING) for each in partitions])
        return self

    def __exit__(self, *_: object) -> None:
        self._producer.flush(15)
        self._consumer.close()

    def play(self, count: int, size: int = 150) -> float:
        """Produce so many records (acks=all, idempotent) and read them back; returns the seconds that it took."""
        began = time.perf_counter()
        value = b"x" * size
        for number in range(count):
            self._producer.produce(self._topic, value, str(number).encode())
        missing = count
        while missing:
            self._producer.poll(0)
            missing -= sum(message.error() is None for message in self._consumer.consume(min(missing, 500), 1.0))
        return time.perf_counter() - began
