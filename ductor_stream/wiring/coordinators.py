"""A coordinator out of an app and its settings."""

from __future__ import annotations

import random
import uuid

# Loaded with the process, not by its first tick: an upgrade in place would give a run two halves of two releases.
import ductor_stream.engine.planners.function  # noqa: F401
from ductor_stream.app import App
from ductor_stream.clock import StoreClock
from ductor_stream.config import Settings
from ductor_stream.coordinator.config import CoordinatorConfig
from ductor_stream.coordinator.definitions import Definitions
from ductor_stream.coordinator.service import Coordinator
from ductor_stream.kafka.log import KafkaLog, KafkaLogConfig
from ductor_stream.kafka.topics import cluster_id
from ductor_stream.ports import LocalWorkers
from ductor_stream.protocol.inbound import InboundDecoder
from ductor_stream.protocol.outbound import Encoder
from ductor_stream.protocol.registry import ConfluentRegistry
from ductor_stream.protocol.topics import Topics
from ductor_stream.protocol.worker import WorkerCodec
from ductor_stream.store import migrate
from ductor_stream.store.postgres import PostgresStore
from ductor_stream.telemetry.metrics import Metrics
from ductor_stream.wiring.group import Service
from ductor_stream.wiring.topics import admin_config, require_topics


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
    dsn = settings.need_database()
    migrate.check(dsn)
    log = KafkaLog(log_config(app, settings))
    try:
        return _coordinator(app, settings, metrics, log, local, config or CoordinatorConfig())
    except BaseException:
        log.close()
        raise


def log_config(app: App, settings: Settings) -> KafkaLogConfig:
    """How the coordinator's log is opened. Raises InvalidConfig."""
    return KafkaLogConfig(
        bootstrap=settings.need_kafka(),
        topics=settings.topics(app.namespace),
        options=settings.kafka,
        instance_id=settings.kafka_instance_id,
        protocol=settings.kafka_protocol,
    )


def _coordinator(
    app: App,
    settings: Settings,
    metrics: Metrics,
    log: KafkaLog,
    local: LocalWorkers | None,
    config: CoordinatorConfig,
) -> Coordinator:
    topics = settings.topics(app.namespace)
    partitions = require_topics(app, settings, log.partition_counts())
    definitions = definitions_of(app)
    store = PostgresStore(settings.need_database())
    try:
        namespace = store.namespace(topics.namespace, cluster_id(admin_config(app, settings)), partitions)
        store.declare(definitions.declared())
        clock = StoreClock()
        clock.observe(store.ping())
    except BaseException:
        store.close()
        raise
    return Coordinator(
        config,
        definitions,
        topics,
        (store, log, clock, local),
        _codecs(topics, settings),
        metrics,
        partitions=namespace.partitions,
        new_token=lambda: str(uuid.uuid4()),
        jitter=random.random,
    )


def _codecs(topics: Topics, settings: Settings) -> tuple[InboundDecoder, Encoder, WorkerCodec]:
    registry = ConfluentRegistry(settings.schema_registry) if settings.schema_registry else None
    return (
        InboundDecoder(topics, registry),
        Encoder(topics, format=settings.encoding, registry=registry),
        WorkerCodec(settings.encoding, registry),
    )


def coordinator_service(app: App, settings: Settings, metrics: Metrics, local: LocalWorkers | None = None) -> Service:
    """The same, to be run beside other services. Raises as ``open_coordinator`` does."""
    coordinator = open_coordinator(app, settings, metrics, local)
    readiness = coordinator.readiness
    return Service("coordinator", coordinator.run, coordinator.stop, readiness.reasons, readiness.ticking_for)
