"""Scripted workers: they know the page of the wire alone, take tasks at least once, and misbehave as the seed says."""

from __future__ import annotations

import functools
import heapq
import json
from collections import Counter
from typing import Any

import msgspec

from ductor_stream.protocol import avro
from ductor_stream.protocol.messages import AttemptFinished, AttemptHeartbeat
from ductor_stream.protocol.writing import Writer
from ductor_stream.testing.simulation.memory_broker import Broker, Kept, Topic
from ductor_stream.testing.simulation.world import World

_BEAT_US = 3_000_000
_FENCE = ("run_id", "execution", "node_id", "generation")
_avro = Writer("avro")
_messages = msgspec.json.Decoder(AttemptFinished | AttemptHeartbeat)


class Fleet:
    """All workers of all queues. What they will do is in a heap by its time."""

    def __init__(self, world: World, broker: Broker) -> None:
        self._world, self._broker = world, broker
        self._agenda: list[tuple[int, int, str, dict[str, Any], Any]] = []
        self._number = 0
        self._writes_avro = world.rng.random() < 0.3
        self.effects: Counter[str] = Counter()
        self.emitted = 0

    def took(self, topic: Topic, partition: int, record: Kept) -> None:
        """A task is in its topic: some worker will begin it."""
        task = task_of(record)
        if task is None:
            return
        task = {**task, "topic": topic.name, "topic_id": topic.id, "place": (partition, record.offset)}
        topic.partitions[partition].open.add(record.offset)
        slow = 20_000_000 if self._world.chance("worker") else 30_000
        self._plan(self._world.rng.randint(200, slow), "begin", task, None)

    def next_us(self) -> int | None:
        """When something happens next."""
        return self._agenda[0][0] if self._agenda else None

    def act(self) -> None:
        """Do what is due first."""
        _, _, what, task, detail = heapq.heappop(self._agenda)
        if what == "begin":
            if self._is_kept(task):
                self._begin(task)
        elif what == "beat":
            self._emit(task, {"type": "attempt.heartbeat", "details": {"at": detail}})
        else:
            self._emit(task, {"type": "attempt.finished", **detail})
            self._done(task)

    def execute(self, task: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        """How long the attempt takes (microseconds), and its outcome."""
        self.effects[task["idempotency_key"]] += 1
        rng = self._world.rng
        us = rng.randint(500, 400_000)
        if not self._world.chance("worker"):
            return us, {"outcome": "completed", "output": _mark(task)}
        kind = rng.choice(["failed", "failed", "terminal", "rejected", "long", "long"])
        if kind == "long":
            return rng.randint(1_000_000, 40_000_000), {"outcome": "completed", "output": _mark(task)}
        if kind == "rejected":
            return us, {"outcome": "rejected", "error": {"code": "step_unknown", "message": _mark(task)}}
        error = {"code": "user", "type": "Boom", "message": _mark(task), "retryable": kind == "failed"}
        return us, {"outcome": "failed", "error": error}

    def _is_kept(self, task: dict[str, Any]) -> bool:
        """Whether its topic still has the record: else nobody will ever read it."""
        topic, (partition, offset) = self._broker.topics[task["topic"]], task["place"]
        if topic.id == task["topic_id"] and topic.partitions[partition].start <= offset:
            return True
        self._done(task)
        return False

    def _done(self, task: dict[str, Any]) -> None:
        topic = self._broker.topics[task["topic"]]
        if topic.id == task.get("topic_id"):
            topic.partitions[task["place"][0]].open.discard(task["place"][1])

    def _begin(self, task: dict[str, Any]) -> None:
        world, rng = self._world, self._world.rng
        us, outcome = self.execute(task)
        silent = world.chance("worker")
        if not silent:
            for at in range(rng.choice([0, 1_000_000]), us, _BEAT_US):
                self._plan(at, "beat", task, at)
        if world.chance("worker") and rng.random() < 0.3:
            # The worker dies: its offset was not committed, so another one begins the same task later.
            self._plan(us // 2 + rng.randint(2_000_000, 20_000_000), "begin", task, None)
            return
        self._plan(us, "finish", task, outcome)
        if world.chance("duplicate"):
            self._plan(us + rng.randint(1, 60_000_000), "finish", task, outcome)

    def _plan(self, us: int, what: str, task: dict[str, Any], detail: Any) -> None:
        self._number += 1
        heapq.heappush(self._agenda, (self._world.us + us, self._number, what, task, detail))

    def said(self, task: dict[str, Any], message: dict[str, Any]) -> bytes:
        """A message about an attempt, with its fence echoed."""
        value = json.dumps({**{name: task[name] for name in _FENCE}, "worker": "w", **message}).encode()
        return _avro.write(_messages.decode(value)) if self._writes_avro else value

    def _emit(self, task: dict[str, Any], message: dict[str, Any]) -> None:
        self.emitted += 1
        partition = None
        if self._world.chance("elsewhere"):
            partition = self._world.rng.randrange(len(self._broker.topics[task["results_topic"]].partitions))
        value = self.said(task, message)
        self._world.note("worker", f"{message['type']} {_mark(task)}")
        self._broker.append(task["results_topic"], task["run_id"].encode(), value, (), partition)


def task_of(record: Kept) -> dict[str, Any] | None:
    """The task of a record, None where it is garbage. It is not to be changed."""
    return task_in(record.value or b"null")


@functools.lru_cache(512)
def task_in(value: bytes) -> dict[str, Any] | None:
    """The same of a record's value: several look at each, and so do the checkers."""
    if value.startswith(avro.SINGLE_OBJECT):
        form = avro.catalog().current("task")
        return avro.read(value[avro.HEADER_BYTES :], form.schema, form) if value.startswith(form.header) else None
    try:
        task = json.loads(value)
    except (ValueError, RecursionError):
        return None
    return task if isinstance(task, dict) and "idempotency_key" in task else None


def _mark(task: dict[str, Any]) -> str:
    """Names the attempt in its result, so that a checker sees whose it is."""
    return "|".join(str(task[name]) for name in _FENCE)
