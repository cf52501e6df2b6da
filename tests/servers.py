"""How the test session comes by its Kafka and Postgres (see conftest.py for the order)."""

from __future__ import annotations

import gc
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import psycopg
from psycopg import sql
from support import fresh_name


@dataclass(frozen=True)
class KafkaServer:
    """A running Kafka."""

    bootstrap: str


@dataclass(frozen=True)
class PostgresServer:
    """A running Postgres; ``url`` is a superuser's."""

    url: str


@contextmanager
def session_kafka(folder: Path) -> Iterator[KafkaServer]:
    """The session's Kafka, with its data in ``folder`` if it is the embedded one."""
    if address := os.environ.get("DUCTOR_TEST_KAFKA"):
        yield KafkaServer(address)
    elif containers_wanted():
        from testcontainers.kafka import KafkaContainer

        with KafkaContainer("apache/kafka:4.1.0") as container:
            yield KafkaServer(container.get_bootstrap_server())
    else:
        from ductor_stream.dev.kafka import EmbeddedKafka

        server = EmbeddedKafka(folder)
        server.start()
        try:
            yield KafkaServer(server.bootstrap)
        finally:
            server.stop()


@contextmanager
def session_postgres(folder: Path) -> Iterator[PostgresServer]:
    """The session's Postgres, with its data in ``folder`` if it is the embedded one."""
    if url := os.environ.get("DUCTOR_TEST_DATABASE"):
        yield PostgresServer(url)
    elif containers_wanted():
        from testcontainers.postgres import PostgresContainer

        with PostgresContainer("postgres:18", driver=None) as container:
            yield PostgresServer(container.get_connection_url())
    else:
        from ductor_stream.dev.postgres import EmbeddedPostgres

        # Many tests' connection pools share it.
        server = EmbeddedPostgres(folder, settings={"max_connections": "300"})
        server.start()
        try:
            yield PostgresServer(server.url)
        finally:
            server.stop()


def containers_wanted() -> bool:
    """Whether ``DUCTOR_TEST_CONTAINERS=1`` is set and a Docker daemon answers."""
    if os.environ.get("DUCTOR_TEST_CONTAINERS") != "1":
        return False
    with warnings.catch_warnings():
        # Refused by the daemon's socket, the docker package leaves its own unclosed: not this session's warning.
        warnings.simplefilter("ignore", ResourceWarning)
        answers = _docker_answers()
        gc.collect()
    return answers


def _docker_answers() -> bool:
    import docker

    try:
        client = docker.from_env()
        try:
            return bool(client.ping())
        finally:
            client.close()
    except docker.errors.DockerException:
        return False


@contextmanager
def fresh_database(server_url: str) -> Iterator[str]:
    """An empty database on the server, dropped afterwards with whoever is still connected to it."""
    name = fresh_name("t").replace("-", "_")
    with psycopg.connect(server_url, autocommit=True) as connection:
        connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
    try:
        yield urlunsplit(urlsplit(server_url)._replace(path=f"/{name}"))
    finally:
        with psycopg.connect(server_url, autocommit=True) as connection:
            connection.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))
