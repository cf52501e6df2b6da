"""Topic administration: what topics a namespace needs, creating them, and checking that they can be used."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from ductor_stream.errors import LogUnavailable, TopicsNotReady
from ductor_stream.kafka.options import open_admin, text_of
from ductor_stream.kafka.watch import describe
from ductor_stream.ports import INBOUND
from ductor_stream.protocol.topics import Topics, misfits, unseen

DAY_MS = 86_400_000

DEFAULT_PARTITIONS = 4
"""Of inbound, task and lifecycle topics: a broker on a small machine pays for each (four cost .007 ms a step, 32 .032)."""

INBOUND_RETENTION_MS = 7 * DAY_MS
"""A coordinator reads within seconds; a week is what an outage over a long weekend may take."""

TASK_RETENTION_MS = 30 * DAY_MS
"""A queue may be without workers for weeks, and no coordinator reads its tasks to keep them."""

CONTROL_RETENTION_MS = 3_600_000
"""Orders to stop are read from the end by workers that are up; an old one is of no use."""

LIFECYCLE_RETENTION_MS = 7 * DAY_MS
DEAD_LETTER_RETENTION_MS = 90 * DAY_MS
"""People look at them."""

VISIBLE_SECONDS = 0.05
"""Between two looks for a topic that was just created."""

LARGEST_RECORD_BYTES = 1_048_588
"""Kafka's own default, stated: a payload of 900,000 bytes with its envelope and headers fits."""


def least_in_sync(replicas: int) -> int:
    """``min.insync.replicas`` for so many replicas: with three or more, one may be away and no acknowledged record is lost."""
    return 2 if replicas >= 3 else 1


class TopicPlan(msgspec.Struct, frozen=True):
    """One topic as it is to be created. ``replicas`` -1 leaves the factor to the broker's default."""

    name: str
    partitions: int
    config: Mapping[str, str]
    replicas: int = -1


class Problem(msgspec.Struct, frozen=True):
    """Something about a topic. ``fatal`` ones keep a coordinator from taking partitions; ``text`` has the remedy."""

    topic: str
    text: str
    fatal: bool = True


class AdminConfig(msgspec.Struct, frozen=True, kw_only=True):
    """How to reach the cluster for administration."""

    bootstrap: str
    topics: Topics
    options: Mapping[str, Any] = {}
    """The user's librdkafka options (see ``kafka.options``)."""
    timeout: float = 15.0
    """Seconds for each request."""


def plan(
    topics: Topics, queues: Sequence[str] = (), *, partitions: int = DEFAULT_PARTITIONS, replicas: int = -1
) -> list[TopicPlan]:
    """The topics of a namespace with these task queues. ``partitions`` counts for inbound and task topics."""

    safe = {"min.insync.replicas": str(least_in_sync(replicas))} if replicas > 0 else {}

    def keep(retention_ms: int) -> dict[str, str]:
        return {
            "cleanup.policy": "delete",
            "retention.ms": str(retention_ms),
            "max.message.bytes": str(LARGEST_RECORD_BYTES),
            # Of a host whose clock is an hour ahead a broker takes nothing that has that host's time; and records live
            # for as long as is said, whatever their producer's clock.
            "message.timestamp.type": "LogAppendTime",
            **safe,
        }

    return [
        *(TopicPlan(topics.inbound(short), partitions, keep(INBOUND_RETENTION_MS), replicas) for short in INBOUND),
        *(TopicPlan(topics.tasks(queue), partitions, keep(TASK_RETENTION_MS), replicas) for queue in queues),
        TopicPlan(topics.attempt_control, 1, keep(CONTROL_RETENTION_MS), replicas),
        TopicPlan(topics.run_lifecycle, DEFAULT_PARTITIONS, keep(LIFECYCLE_RETENTION_MS), replicas),
        TopicPlan(topics.dead_letters, 1, keep(DEAD_LETTER_RETENTION_MS), replicas),
    ]


@contextmanager
def _opened(config: AdminConfig) -> Iterator[AdminClient]:
    """Inside, LogUnavailable names the address that was asked."""
    try:
        yield open_admin(config.bootstrap, config.options)
    except LogUnavailable as error:
        raise LogUnavailable(f"{error}; asked at {config.bootstrap}") from error


def cluster_id(config: AdminConfig) -> str:
    """The id of the Kafka cluster, recorded in Postgres for each namespace (protocol 7). Raises LogUnavailable."""
    with _opened(config) as admin:
        try:
            described = admin.describe_cluster(request_timeout=config.timeout).result(config.timeout + 1)
        except (KafkaException, TimeoutError) as error:
            raise LogUnavailable(f"Kafka does not tell its cluster id: {text_of(error)}") from error
    return str(described.cluster_id)


def create_topics(config: AdminConfig, plans: Sequence[TopicPlan]) -> list[str]:
    """Create those that are missing, and return their names; an existing topic is left as it is.

    Raises LogUnavailable, and TopicsNotReady when the broker refuses one (not allowed, too few brokers).
    """
    created: list[str] = []
    with _opened(config) as admin:
        wanted = [NewTopic(each.name, each.partitions, each.replicas, config=dict(each.config)) for each in plans]
        if not wanted:
            return created
        for name, future in admin.create_topics(wanted, request_timeout=config.timeout).items():
            try:
                future.result(config.timeout + 1)
                created.append(name)
            except TimeoutError as error:
                raise LogUnavailable(f"Kafka does not create {name}: {text_of(error)}") from error
            except KafkaException as error:
                _unless_there(name, error)
        _await_visible(admin, created, config.timeout)
    return sorted(created)


def _await_visible(admin: AdminClient, names: Sequence[str], timeout: float) -> None:
    """Brokers learn of a new topic a moment after it was made: return when it can be used."""
    deadline = time.monotonic() + timeout
    while missing := set(names) - describe(admin, list(names), timeout).there.keys():
        if time.monotonic() > deadline:
            raise LogUnavailable(f"created, but Kafka does not show them yet: {', '.join(sorted(missing))}")
        time.sleep(VISIBLE_SECONDS)


def _unless_there(name: str, error: KafkaException) -> None:
    reason: KafkaError = error.args[0]
    if reason.code() == KafkaError.TOPIC_ALREADY_EXISTS:
        return
    if reason.code() < 0 or reason.retriable():
        raise LogUnavailable(f"Kafka does not create {name}: {reason.str()}") from error
    raise TopicsNotReady(f"topic {name} cannot be created: {reason.str()}") from error


def delete_topics(config: AdminConfig, names: Sequence[str]) -> None:
    """Delete topics; those that do not exist are passed over. Raises LogUnavailable, TopicsNotReady (not allowed)."""
    with _opened(config) as admin:
        if not names:
            return
        for name, future in admin.delete_topics(list(names), operation_timeout=config.timeout).items():
            try:
                future.result(config.timeout + 1)
            except TimeoutError as error:
                raise LogUnavailable(f"Kafka does not delete {name}: {text_of(error)}") from error
            except KafkaException as error:
                reason: KafkaError = error.args[0]
                if reason.code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                    continue
                if reason.code() < 0:
                    raise LogUnavailable(f"Kafka does not delete {name}: {reason.str()}") from error
                raise TopicsNotReady(f"topic {name} cannot be deleted: {reason.str()}") from error


def check_topics(config: AdminConfig, plans: Sequence[TopicPlan], *, recorded: int | None = None) -> list[Problem]:
    """What is wrong with the topics of a plan: missing, not co-partitioned, too few partitions. Raises LogUnavailable.

    ``recorded`` is N, the number of run partitions in the namespace's row, if it has one.
    """
    with _opened(config) as admin:
        there, hidden = describe(admin, [each.name for each in plans], config.timeout)
    counts = {name: state.partitions for name, state in there.items()}
    return problems(config.topics, [each.name for each in plans], counts, recorded, hidden)


def problems(
    topics: Topics,
    names: Sequence[str],
    counts: Mapping[str, int],
    recorded: int | None,
    hidden: Collection[str] = (),
) -> list[Problem]:
    """The judgement of ``check_topics`` over known partition counts (pure). ``hidden`` may not be described by us."""
    fatal = misfits(topics, counts, recorded, hidden)
    away = {name: unseen(name, hidden) for name in names if name not in counts and name not in fatal}
    return [Problem(name, text, name in fatal) for name, text in {**fatal, **away}.items()]
