"""What a cluster tells of itself and of a namespace's topics and groups, for ``doctor`` and ``runs show``. Read only,
but for the clock, which only a record can tell."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec
from confluent_kafka import (
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
    Producer,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka import admin as driver
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from ductor_stream.errors import LogUnavailable, TopicsNotReady
from ductor_stream.kafka.offsets import PASSING, PASSING_SECONDS, offset_in
from ductor_stream.kafka.options import client_options, open_admin, open_client, text_of
from ductor_stream.kafka.topics import AdminConfig
from ductor_stream.kafka.watch import describe

_driver: Any = driver  # some of its names are exported at run time only, not in its stubs
_DENIED = frozenset(
    {
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    }
)
_ABSENT = frozenset({KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError.GROUP_ID_NOT_FOUND})


class TopicFacts(msgspec.Struct, frozen=True):
    """A topic. ``replicas`` and ``in_sync`` are those of its worst partition; ``rights`` None: the broker does not say."""

    partitions: int
    replicas: int
    in_sync: int
    config: Mapping[str, str] = {}
    rights: frozenset[str] | None = None


class GroupFacts(msgspec.Struct, frozen=True):
    """A consumer group: how many members it has, and what the broker would let us do with it."""

    members: int
    protocol: str = ""
    rights: frozenset[str] | None = None
    config: Mapping[str, str] = {}


class ClusterFacts(msgspec.Struct, frozen=True):
    """A cluster as it describes itself to us. ``denied`` are resources that we may not even see."""

    cluster_id: str
    brokers: int
    broker_config: Mapping[str, str] = {}
    topics: Mapping[str, TopicFacts] = {}
    groups: Mapping[str, GroupFacts] = {}
    denied: Sequence[str] = ()


class QueueFacts(msgspec.Struct, frozen=True):
    """A task queue: consumers that are up, and how many tasks nobody has finished."""

    consumers: int
    waiting: int


class ClockFacts(msgspec.Struct, frozen=True):
    """How far another clock is ahead of this machine's (ms), and by how much that may be wrong."""

    ahead_ms: float
    error_ms: float


def inspect_cluster(config: AdminConfig, topics: Sequence[str], groups: Sequence[str]) -> ClusterFacts:
    """Ask for everything that ``doctor`` judges. Raises LogUnavailable."""
    admin = open_admin(config.bootstrap, config.options)
    try:
        described = admin.describe_cluster(request_timeout=config.timeout).result(config.timeout + 1)
        denied: list[str] = []
        return ClusterFacts(
            cluster_id=str(described.cluster_id),
            brokers=len(described.nodes),
            broker_config=_configs(admin, "BROKER", [str(described.nodes[0].id)], config, denied).popitem()[1],
            topics=_topics(admin, topics, config, denied),
            groups=_groups_if_told(admin, groups, config, denied),
            denied=denied,
        )
    except (KafkaException, TimeoutError) as error:
        raise LogUnavailable(f"Kafka does not answer: {text_of(error)}") from error


def topic_configs(admin: AdminClient, names: Sequence[str], config: AdminConfig) -> dict[str, dict[str, str]]:
    """Topics' configurations; empty ones where we may not see them. Raises KafkaException, TimeoutError."""
    return _configs(admin, "TOPIC", names, config, [])


def _answers(
    futures: Mapping[Any, Any], timeout: float, denied: list[str], name: Callable[[Any], str]
) -> dict[str, Any]:
    """The answers by name; what is not there is left out, what we may not see is noted."""
    found: dict[str, Any] = {}
    for key, future in futures.items():
        try:
            found[name(key)] = future.result(timeout + 1)
        except KafkaException as error:
            code = error.args[0].code()
            if code in _DENIED:
                denied.append(name(key))
            elif code not in _ABSENT:
                raise
    return found


def _configs(
    admin: AdminClient, kind: str, names: Sequence[str], config: AdminConfig, denied: list[str]
) -> dict[str, dict[str, str]]:
    """Configurations by resource; empty ones where the broker is too old, or we may not see them."""
    empty: dict[str, dict[str, str]] = {name: {} for name in names}
    resources = [_driver.ConfigResource(getattr(_driver.ResourceType, kind), name) for name in names]
    if not resources:
        return empty
    try:
        futures = admin.describe_configs(resources, request_timeout=config.timeout)
        answers = _answers(futures, config.timeout, [], lambda resource: str(resource.name))
    except KafkaException as error:
        if error.args[0].code() in (KafkaError.INVALID_REQUEST, KafkaError.UNSUPPORTED_VERSION):
            return empty
        raise
    if kind == "BROKER" and not answers:
        denied.append("the brokers' configuration")
    told = {
        name: {key: str(entry.value) for key, entry in entries.items() if entry.value is not None}
        for name, entries in answers.items()
    }
    return empty | told


def _topics(admin: AdminClient, names: Sequence[str], config: AdminConfig, denied: list[str]) -> dict[str, TopicFacts]:
    if not names:
        return {}
    futures = admin.describe_topics(
        TopicCollection(list(names)), include_authorized_operations=True, request_timeout=config.timeout
    )
    answers = _answers(futures, config.timeout, denied, str)
    configs = _configs(admin, "TOPIC", list(answers), config, denied)
    return {
        name: TopicFacts(
            partitions=len(topic.partitions),
            replicas=min(len(each.replicas) for each in topic.partitions),
            in_sync=min(len(each.isr) for each in topic.partitions),
            config=configs[name],
            rights=_rights(topic.authorized_operations),
        )
        for name, topic in answers.items()
    }


def _groups(admin: AdminClient, names: Sequence[str], config: AdminConfig, denied: list[str]) -> dict[str, GroupFacts]:
    if not names:
        return {}
    futures = admin.describe_consumer_groups(
        list(names), include_authorized_operations=True, request_timeout=config.timeout
    )
    answers = _answers(futures, config.timeout, denied, str)
    configs = _configs(admin, "GROUP", list(answers), config, denied)
    return {
        name: GroupFacts(
            len(group.members), group.type.name.lower(), _rights(group.authorized_operations), configs[name]
        )
        for name, group in answers.items()
    }


def _groups_if_told(
    admin: AdminClient, names: Sequence[str], config: AdminConfig, denied: list[str]
) -> dict[str, GroupFacts]:
    """The same, none where no coordinator of groups answers: a cluster that never had a group has yet to make one."""
    try:
        return _groups(admin, names, config, denied)
    except KafkaException as error:
        if error.args[0].code() != KafkaError._TIMED_OUT:
            raise
        return {}


def _rights(operations: Iterable[Any] | None) -> frozenset[str] | None:
    return None if operations is None else frozenset(each.name.lower() for each in operations)


# -- queues ---------------------------------------------------------------------------------------


def inspect_queues(config: AdminConfig, queues: Sequence[str]) -> dict[str, QueueFacts]:
    """Consumers and waiting tasks of these queues. Raises LogUnavailable.

    A queue is left out whose topic does not exist, or whose group we may not see: then nothing is known of it.
    """
    admin, topics = open_admin(config.bootstrap, config.options), config.topics
    states = describe(admin, [topics.tasks(queue) for queue in queues], config.timeout).there
    there = {queue: states[topics.tasks(queue)] for queue in queues if topics.tasks(queue) in states}
    denied: list[str] = []
    try:
        groups = _groups(admin, [topics.worker_group(queue) for queue in there], config, denied)
        return {
            queue: QueueFacts(
                members, _waiting(admin, topics.tasks(queue), topics.worker_group(queue), state.partitions, config)
            )
            for queue, state in there.items()
            if (members := _members(groups, denied, topics.worker_group(queue))) is not None
        }
    except (KafkaException, TimeoutError) as error:
        raise LogUnavailable(f"Kafka does not tell of the queues: {text_of(error)}") from error


def inspect_members(config: AdminConfig, group: str) -> int | None:
    """How many members a group has; 0 where there is none, None where we may not see it. Raises LogUnavailable."""
    denied: list[str] = []
    try:
        found = _groups(open_admin(config.bootstrap, config.options), [group], config, denied)
    except (KafkaException, TimeoutError) as error:
        raise LogUnavailable(f"Kafka does not tell of group {group}: {text_of(error)}") from error
    return _members(found, denied, group)


def _members(found: Mapping[str, GroupFacts], denied: Sequence[str], group: str) -> int | None:
    if group in denied:
        return None
    return found[group].members if group in found else 0


def _waiting(admin: AdminClient, topic: str, group: str, partitions: int, config: AdminConfig) -> int:
    places = [TopicPartition(topic, number) for number in range(partitions)]
    request = [ConsumerGroupTopicPartitions(group, places)]
    futures = admin.list_consumer_group_offsets(request, request_timeout=config.timeout)
    (answer,) = _answers(futures, config.timeout, [], str).values() or (None,)
    committed = {each.partition: each.offset for each in answer.topic_partitions} if answer is not None else {}
    starts, ends = (_offsets(admin, places, spec, config) for spec in ("earliest", "latest"))
    return sum(max(0, ends[number] - max(committed.get(number, -1), starts[number])) for number in range(partitions))


def _offsets(admin: AdminClient, places: Sequence[TopicPartition], spec: str, config: AdminConfig) -> dict[int, int]:
    wanted = getattr(_driver.OffsetSpec, spec)()
    deadline = time.monotonic() + config.timeout
    while True:
        answers = admin.list_offsets({place: wanted for place in places}, request_timeout=config.timeout)
        try:
            return {place.partition: offset_in(answer.result(config.timeout + 1)) for place, answer in answers.items()}
        except KafkaException as error:
            if error.args[0].code() not in PASSING or time.monotonic() > deadline:
                raise
        except TimeoutError as error:
            if time.monotonic() > deadline:
                raise LogUnavailable(f"Kafka does not tell the offsets of {places[0].topic}: {error}") from error
        time.sleep(PASSING_SECONDS)


# -- the clock ------------------------------------------------------------------------------------


def measure_clock(config: AdminConfig, name: str) -> ClockFacts:
    """The broker's clock, by a record in a topic that is made for it and deleted: no request asks for the time.

    Raises LogUnavailable, TopicsNotReady (topics may not be made).
    """
    admin = open_admin(config.bootstrap, config.options)
    topic = NewTopic(f"{name}-{uuid.uuid4().hex[:8]}", 1, -1, config={"message.timestamp.type": "LogAppendTime"})
    try:
        admin.create_topics([topic], request_timeout=config.timeout)[topic.topic].result(config.timeout + 1)
    except (KafkaException, TimeoutError) as error:
        raise TopicsNotReady(f"no topic could be made for a look at Kafka's clock: {text_of(error)}") from error
    try:
        producer = open_client(Producer, client_options("producer", config.bootstrap, config.options))
        _stamp(producer, topic.topic, config.timeout)  # the first one pays for the connection
        return _stamp(producer, topic.topic, config.timeout)
    finally:
        admin.delete_topics([topic.topic], operation_timeout=config.timeout)[topic.topic].exception(config.timeout + 1)


def _stamp(producer: Producer, topic: str, timeout: float) -> ClockFacts:
    heard: list[tuple[KafkaError | None, int]] = []
    before = time.time() * 1000
    producer.produce(topic, b"", on_delivery=lambda error, message: heard.append((error, message.timestamp()[1])))
    producer.flush(timeout)
    after = time.time() * 1000
    if not heard or heard[0][0] is not None:
        raise LogUnavailable(f"Kafka does not take a record: {heard[0][0] if heard else 'no answer'}")
    return ClockFacts(heard[0][1] - (before + after) / 2, (after - before) / 2)
