"""The one place where adapters meet services: a coordinator or a worker out of an app and its settings.

Nothing here decides anything; it opens connections, checks that schema and topics fit, and hands over.
"""

from __future__ import annotations

import random
import threading
import uuid
from collections.abc import Callable, Sequence
from typing import Protocol

import psycopg

from ductor_stream.app import App
from ductor_stream.clock import StoreClock
from ductor_stream.config import Settings
from ductor_stream.coordinator.config import CoordinatorConfig
from ductor_stream.coordinator.definitions import Definitions
from ductor_stream.coordinator.service import Coordinator
from ductor_stream.errors import LogUnavailable, StoreUnavailable, TopicsNotReady
from ductor_stream.kafka.log import KafkaLog, KafkaLogConfig
from ductor_stream.kafka.topics import AdminConfig, check_topics, cluster_id, plan
from ductor_stream.ports import INBOUND, LocalWorkers
from ductor_stream.protocol.inbound import InboundDecoder
from ductor_stream.protocol.outbound import Encoder
from ductor_stream.protocol.registry import ConfluentRegistry
from ductor_stream.store import migrate
from ductor_stream.store.postgres import PostgresStore
from ductor_stream.telemetry.metrics import Metrics


class Service(Protocol):
    """Something that runs in a thread until it is stopped."""

    def run(self) -> None:
        """Work until ``stop``; then drain and return."""

    def stop(self) -> None:
        """Ask ``run`` to end in good order. From any thread, also more than once."""

    def ready(self) -> list[str]:
        """Why it is not ready now; empty when it is. From any thread."""


# -- topics ---------------------------------------------------------------------------------


def admin_config(app: App, settings: Settings) -> AdminConfig:
    """How to administer an app's topics. Raises InvalidConfig."""
    return AdminConfig(bootstrap=settings.need_kafka(), topics=settings.topics(app.namespace), options=settings.kafka)


def recorded_partitions(app: App, settings: Settings) -> int | None:
    """N of the app's namespace as Postgres has it, or None where it has none (or no database is configured)."""
    if not settings.has_database:
        return None
    query = "select partitions from eec_namespace where name = %s"
    try:
        with psycopg.connect(settings.need_database(), autocommit=True) as connection:
            row = connection.execute(query, (settings.topics(app.namespace).namespace,)).fetchone()
    except psycopg.errors.UndefinedTable:
        return None
    except psycopg.Error as error:
        raise StoreUnavailable(f"Postgres cannot be reached: {' '.join(str(error).split())}") from error
    return int(row[0]) if row is not None else None


def _require_topics(app: App, settings: Settings, log: KafkaLog) -> int:
    """The number of run partitions that Kafka has. Raises TopicsNotReady, LogUnavailable."""
    config = admin_config(app, settings)
    fatal = [
        problem.text
        for problem in check_topics(config, plan(config.topics), recorded=recorded_partitions(app, settings))
        if problem.fatal
    ]
    if fatal:
        raise TopicsNotReady("; ".join(fatal))
    counts = log.partition_counts()
    return min(counts[config.topics.inbound(short)] for short in INBOUND)


# -- the coordinator ------------------------------------------------------------------------


def definitions_of(app: App) -> Definitions:
    """The workflows that an app has code for."""
    latest = {name: app.default_version(name) for name, _ in app.workflows}
    return Definitions((workflow.definition for workflow in app.workflows.values()), latest)


def open_coordinator(
    app: App,
    settings: Settings,
    metrics: Metrics,
    local: LocalWorkers | None = None,
    config: CoordinatorConfig | None = None,
) -> Coordinator:
    """A coordinator that is connected and may run.

    Raises InvalidConfig, SchemaMismatch, TopicsNotReady, StoreUnavailable, LogUnavailable.
    """
    topics = settings.topics(app.namespace)
    dsn = settings.need_database()
    migrate.check(dsn)
    log = KafkaLog(
        KafkaLogConfig(
            bootstrap=settings.need_kafka(),
            topics=topics,
            options=settings.kafka,
            instance_id=settings.kafka_instance_id,
            protocol=settings.kafka_protocol,
        )
    )
    try:
        partitions = _require_topics(app, settings, log)
        store = PostgresStore(dsn)
        namespace = store.namespace(topics.namespace, cluster_id(admin_config(app, settings)), partitions)
        definitions = definitions_of(app)
        store.declare(definitions.declared())
    except BaseException:
        log.close()
        raise
    clock = StoreClock()
    clock.observe(store.ping())
    registry = ConfluentRegistry(settings.schema_registry) if settings.schema_registry else None
    return Coordinator(
        config or CoordinatorConfig(),
        definitions,
        topics,
        (store, log, clock, local),
        (InboundDecoder(topics, registry), Encoder(topics, format=settings.encoding, registry=registry)),
        metrics,
        partitions=namespace.partitions,
        new_token=lambda: str(uuid.uuid4()),
        jitter=random.random,
    )


# -- several services in one process --------------------------------------------------------


class Group:
    """Services that run side by side in threads of one process, and end together.

    When one of them ends, for whatever reason, the others are stopped: half a process helps nobody.
    """

    def __init__(self, services: Sequence[tuple[str, Service]]) -> None:
        self._services = list(services)
        self._ended = threading.Event()
        self._error: BaseException | None = None
        self._threads = [
            threading.Thread(target=self._run, args=(service,), name=f"ductor-{name}") for name, service in services
        ]

    def start(self) -> None:
        """Start every service in a thread of its own."""
        for thread in self._threads:
            thread.start()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until one service has ended; False when the time (seconds) is up before that."""
        return self._ended.wait(timeout)

    def stop(self) -> None:
        """Stop all of them in order, wait for their ends, and raise what the first one failed with."""
        for _, service in self._services:
            service.stop()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join()
        if self._error is not None:
            raise self._error

    def ready(self) -> list[str]:
        """Why the process is not ready, by service; empty when all of them are."""
        found = [f"{name}: {reason}" for name, service in self._services for reason in service.ready()]
        if self._ended.is_set():
            found.append("the process is ending")
        return found

    def _run(self, service: Service) -> None:
        try:
            service.run()
        except BaseException as error:  # noqa: BLE001 (whatever ended it is raised in the thread that waits)
            self._error = self._error or error
        finally:
            self._ended.set()


Connect = Callable[[], Service]
_FIRST_RETRY_S, _LONGEST_RETRY_S = 0.5, 5.0


def connected(connect: Connect, stopping: threading.Event, heard: Callable[[str], None]) -> Service | None:
    """Open a service, trying again while Kafka or Postgres is away; None when ``stopping`` was set meanwhile.

    ``heard`` gets each reason once. What trying again cannot mend (schema, topics, configuration) is raised.
    """
    pause, told = _FIRST_RETRY_S, ""
    while not stopping.is_set():
        try:
            return connect()
        except (LogUnavailable, StoreUnavailable) as error:
            if str(error) != told:
                told = str(error)
                heard(told)
        stopping.wait(pause)
        pause = min(pause * 2, _LONGEST_RETRY_S)
    return None
