"""An app's topics as its settings name them, and whether a coordinator may use them."""

from __future__ import annotations

from collections.abc import Mapping

import psycopg

from ductor_stream.app import App
from ductor_stream.config import Settings
from ductor_stream.errors import StoreUnavailable, TopicsNotReady
from ductor_stream.kafka.topics import DEFAULT_PARTITIONS, AdminConfig, TopicPlan, check_topics, plan
from ductor_stream.ports import INBOUND


def admin_config(app: App, settings: Settings) -> AdminConfig:
    """How to administer an app's topics. Raises InvalidConfig."""
    return AdminConfig(bootstrap=settings.need_kafka(), topics=settings.topics(app.namespace), options=settings.kafka)


def planned(app: App, settings: Settings) -> list[TopicPlan]:
    """The topics of an app as the configuration wants them."""
    return plan(
        settings.topics(app.namespace),
        app.queues(),
        partitions=settings.partitions or DEFAULT_PARTITIONS,
        replicas=settings.replicas or -1,
    )


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


def require_topics(app: App, settings: Settings, counts: Mapping[str, int]) -> int:
    """The number of run partitions that Kafka has, out of its ``counts`` by topic. Raises TopicsNotReady, LogUnavailable."""
    config = admin_config(app, settings)
    fatal = [
        problem.text
        for problem in check_topics(config, plan(config.topics), recorded=recorded_partitions(app, settings))
        if problem.fatal
    ]
    if fatal:
        raise TopicsNotReady("; ".join(fatal))
    return min(counts[config.topics.inbound(short)] for short in INBOUND)
