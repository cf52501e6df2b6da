"""Faults of topics: raised, deleted and created anew, emptied by retention before they were read.

Where input is destroyed, exactly what is told to the load: with all coordinators dead, Postgres says how far they had
read, and the topic how far it went.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource
from confluent_kafka.admin._resource import ResourceType
from confluent_kafka.cimpl import NewPartitions

from chaos.app import app
from chaos.load import Lost
from chaos.world import REPLICAS, World, made
from ductor_stream.kafka.topics import INBOUND_RETENTION_MS, delete_topics, plan
from ductor_stream.kafka.watch import describe
from ductor_stream.ports import INBOUND

_MOST = 4
"""Times the first number of partitions: beyond it raising shows nothing new."""
_WITHIN_S = 60.0
_OFFSETS = """
select partition, offsets[1], coalesce(topic_ids ->> %s, '') from eec_partition join eec_namespace using (ns) where name = %s
"""


@contextmanager
def raise_partitions(world: World, dice: random.Random) -> Iterator[str]:
    """The inbound topics get more partitions, one topic after the other."""
    names = [world.topics.inbound(short) for short in INBOUND]
    dice.shuffle(names)
    now = _partitions(world, names[0])
    goal = min(now + dice.randint(1, 2), world.shape.partitions * _MOST)
    yield f"{now} → {goal}"
    if goal > now:
        for name in names:
            world.brokers.admin.create_partitions([NewPartitions(name, goal)])[name].result(20)
            time.sleep(dice.uniform(0.5, 4.0))
    world.brokers.until_healthy()


@contextmanager
def recreate(world: World, dice: random.Random) -> Iterator[str]:
    """A topic that holds nothing which Postgres does not know is deleted and created anew, while all are at work."""
    topics = world.topics
    inner = [topics.attempt_results, topics.wakeups, topics.attempt_control]
    name = dice.choice([*inner, *(topics.tasks(queue) for queue in app.queues())])
    count = _partitions(world, name)
    yield name
    _delete(world, name)
    time.sleep(dice.uniform(0.0, 3.0))
    _create(world, name, count)


@contextmanager
def recreate_input(world: World, dice: random.Random) -> Iterator[str]:
    """The topic of the clients is deleted with what stood unread in it, and created anew."""
    with _unread(world):
        yield "with what nobody had read"
        world.load.hold()
        ranges = _unread_ranges(world, _ends(world), _id(world))
        count = _partitions(world, world.topics.run_events)
        _delete(world, world.topics.run_events)
        _create(world, world.topics.run_events, count)
        world.load.renew()
        world.load.lost(ranges)


@contextmanager
def retention(world: World, dice: random.Random) -> Iterator[str]:
    """Retention deletes input of the clients before anybody has read it."""
    name = world.topics.run_events
    with _unread(world):
        yield "before anybody had read it"
        world.load.hold()
        ends = _ends(world)
        _retain(world, name, 1)
        try:
            _until(lambda: all(low >= ends[p] for p, low in _lows(world).items()), "retention at work")
        finally:
            _retain(world, name, INBOUND_RETENTION_MS)
        world.load.lost(_unread_ranges(world, _lows(world), _id(world)))


@contextmanager
def _unread(world: World) -> Iterator[None]:
    """No coordinator is there while clients go on, so that input stays unread."""
    coordinators = world.fleet.owners()
    for place in coordinators:
        world.fleet.kill(place)
    try:
        yield
    finally:
        world.load.go_on()
        for place in coordinators:
            world.fleet.start(place)
        world.fleet.until_running()


def _unread_ranges(world: World, upto: dict[int, int], topic_id: str) -> list[Lost]:
    with world.postgres.connect() as connection:
        names = (world.topics.run_events, world.topics.namespace)
        read = {p: (max(0, offset), id) for p, offset, id in connection.execute(_OFFSETS, names)}
    found = []
    for partition, end in sorted(upto.items()):
        offset, id = read.get(partition, (0, ""))
        start = offset if id == topic_id else 0
        if end > start:
            found.append(Lost(world.load.incarnation, partition, start, end, offset, id))
    return found


def _id(world: World) -> str:
    name = world.topics.run_events
    return describe(world.brokers.admin, [name], 15.0).there[name].id


def _partitions(world: World, name: str) -> int:
    return len(world.brokers.admin.list_topics(name, timeout=15).topics[name].partitions)


def _ends(world: World) -> dict[int, int]:
    return {partition: high for partition, (_, high) in world.brokers.watermarks(world.topics.run_events).items()}


def _lows(world: World) -> dict[int, int]:
    return {partition: low for partition, (low, _) in world.brokers.watermarks(world.topics.run_events).items()}


def _retain(world: World, name: str, retention_ms: int) -> None:
    entry = ConfigEntry("retention.ms", str(retention_ms), incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, name, incremental_configs=[entry])
    for future in world.brokers.admin.incremental_alter_configs([resource]).values():
        future.result(20)


def _delete(world: World, name: str) -> None:
    delete_topics(world.admin, [name])


def _create(world: World, name: str, partitions: int) -> None:
    plans = plan(world.topics, app.queues(), partitions=partitions, replicas=REPLICAS)
    # One that was just deleted may still be there for a moment.
    _until(lambda: name in made(world, [each for each in plans if each.name == name]), f"topic {name}")
    world.brokers.until_healthy()


def _until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + _WITHIN_S
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"no {what} within {_WITHIN_S:.0f} s")
        time.sleep(0.2)
