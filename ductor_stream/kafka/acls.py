"""What each kind of process must be allowed to do in Kafka, and nothing beyond: for brokers with an authorizer.

Kafka 3.0 or newer: an idempotent producer needs no right on the cluster there, WRITE on its topics suffices. READ and
WRITE imply DESCRIBE.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal

import msgspec

from ductor_stream.kafka.topics import plan
from ductor_stream.protocol.topics import Topics

Operation = Literal["read", "write", "describe", "create", "describe_configs"]

CLIENT_GROUP = "ductor-client"
"""What clients call themselves when they read ``run-lifecycle``: they never join it, but the driver looks it up."""

LETTERS_GROUPS = "ductor-letters-"
"""Likewise what reads dead letters; each time another name that begins so."""


class Acl(msgspec.Struct, frozen=True, order=True):
    """One thing that a principal is allowed, from any host."""

    resource: Literal["topic", "group"]
    name: str
    operation: Operation
    pattern: Literal["literal", "prefixed"] = "literal"


def coordinator_acls(topics: Topics, queues: Sequence[str]) -> list[Acl]:
    """A coordinator: reads what comes in as a member of its group, writes tasks, orders to stop, hints and events.

    How far its workers have read tells it whether a task that nobody began is lost, or waits.
    """
    written = [
        topics.wakeups,
        topics.attempt_control,
        topics.run_lifecycle,
        topics.dead_letters,
        *map(topics.tasks, queues),
    ]
    return [
        *_topics("read", topics.inbound_names),
        *_topics("write", written),
        Acl("group", topics.coordinator_group, "read"),
        *(Acl("group", topics.worker_group(queue), "describe") for queue in queues),
    ]


def worker_acls(topics: Topics, queues: Sequence[str]) -> list[Acl]:
    """A worker of these queues: reads their tasks and orders to stop, writes results and what it cannot read."""
    return [
        *_topics("read", [topics.attempt_control, *map(topics.tasks, queues)]),
        *_topics("write", [topics.attempt_results, topics.dead_letters]),
        *(Acl("group", topics.worker_group(queue), "read") for queue in queues),
        Acl("group", f"{topics.attempt_control}.reader", "describe"),
    ]


def serve_acls(topics: Topics, queues: Sequence[str]) -> list[Acl]:
    """Coordinator and worker in one process."""
    return [*coordinator_acls(topics, queues), *worker_acls(topics, queues)]


def client_acls(topics: Topics, queues: Sequence[str]) -> list[Acl]:
    """A client: starts, signals and commands runs; reads their events (not needed where it has a database)."""
    return [
        *_topics("write", [topics.run_events]),
        *_topics("read", [topics.run_lifecycle]),
        Acl("group", CLIENT_GROUP, "describe"),
    ]


def topics_acls(topics: Topics, queues: Sequence[str]) -> list[Acl]:
    """``topics create`` and ``topics check``."""
    names = [each.name for each in plan(topics, queues)]
    return [*_topics("create", names), *_topics("describe", names)]


def letters_acls(topics: Topics, queues: Sequence[str]) -> list[Acl]:
    """``dead-letters list`` and ``replay``: sends records again to the inbound and task topics that they came from."""
    return [
        *_topics("read", [topics.dead_letters]),
        *_topics("write", [*topics.inbound_names, *map(topics.tasks, queues)]),
        Acl("group", LETTERS_GROUPS, "describe", "prefixed"),
        Acl("group", CLIENT_GROUP, "describe"),
    ]


def purge_acls(topics: Topics, queues: Sequence[str]) -> list[Acl]:
    """``purge``: looks for how long the topics keep their records."""
    names = [*topics.inbound_names, *map(topics.tasks, queues), topics.dead_letters]
    return [*_topics("describe", names), *_topics("describe_configs", names)]


PROCESSES: Mapping[str, Callable[[Topics, Sequence[str]], list[Acl]]] = {
    "topics": topics_acls,
    "coordinator": coordinator_acls,
    "worker": worker_acls,
    "serve": serve_acls,
    "client": client_acls,
    "dead-letters": letters_acls,
    "purge": purge_acls,
}
"""Kinds of processes, by the names of their commands; each function is given the namespace's topics and its queues."""


def acls_for(process: str, topics: Topics, queues: Sequence[str]) -> list[Acl]:
    """What one of ``PROCESSES`` needs, sorted, each thing once. Raises InvalidDefinition for a queue that is no name."""
    return sorted(set(PROCESSES[process](topics, queues)))


def published_acls(names: Iterable[str]) -> list[Acl]:
    """What a worker needs beyond for the topics that Kafka steps publish to."""
    return _topics("write", names)


def _topics(operation: Operation, names: Iterable[str]) -> list[Acl]:
    return [Acl("topic", name, operation) for name in names]
