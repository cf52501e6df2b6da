"""A namespace with one queue for tests of worker processes: tasks by hand, and what the workers report of them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec
from confluent_kafka import Consumer, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from support import fresh_name, until
from topic_config import APPENDED, configure
from worker_rigs import task_json

from ductor_stream.kafka.topics import AdminConfig, create_topics, plan
from ductor_stream.protocol.topics import Topics
from ductor_stream.worker.window import decode_runs

CHILD = Path(__file__).with_name("worker_child.py")


class Rig:
    """A namespace of its own with one queue, worker processes, and a reader of what they report."""

    def __init__(self, bootstrap: str, folder: Path, *, partitions: int = 1, protocol: str = "auto") -> None:
        self.bootstrap = bootstrap
        self.folder = folder
        self.topics = Topics(fresh_name("w"))
        self.partitions = partitions
        self.protocol = protocol
        self.admin = AdminConfig(bootstrap=bootstrap, topics=self.topics)
        self.create()
        self.children: list[subprocess.Popen[str]] = []
        self._producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
        self._reader = Consumer({"bootstrap.servers": bootstrap, "group.id": fresh_name("r"), "auto.offset.reset": "earliest"})  # fmt: skip
        self._reader.assign([TopicPartition(self.topics.attempt_results, p, 0) for p in range(partitions)])
        self._seen: list[tuple[int, dict[str, Any]]] = []

    def create(self) -> None:
        create_topics(self.admin, plan(self.topics, ["default"], partitions=self.partitions))

    # -- workers ----------------------------------------------------------------------------

    def worker(self, name: str, *, concurrency: int = 4, grace_s: float = 10, ready: bool = True, kafka: Mapping[str, int] = MappingProxyType({}), instance: str | None = None) -> subprocess.Popen[str]:  # fmt: skip
        config = {
            "name": name,
            "namespace": self.topics.namespace,
            "bootstrap": self.bootstrap,
            "folder": str(self.folder),
            "concurrency": concurrency,
            "grace_s": grace_s,
            "protocol": self.protocol,
            "kafka": dict(kafka),
            "instance": instance,
        }
        with (self.folder / f"{name}.log").open("w") as log:
            child = subprocess.Popen(
                [sys.executable, str(CHILD), json.dumps(config)], stdout=log, stderr=subprocess.STDOUT, text=True
            )
        self.children.append(child)
        if ready:
            self.until_ready(name)
        return child

    def problems(self, name: str) -> str | None:
        """What the worker says is wrong; empty when it is ready, None before it says anything."""
        path = self.folder / f"{name}.problems"
        return path.read_text() if path.exists() else None

    def until_ready(self, name: str) -> None:
        until(lambda: self.problems(name) == "", within_ms=30_000, what=f"worker {name} is ready")

    def log_of(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text()

    def ran(self) -> list[str]:
        """What ran where, in order: ``worker argument``."""
        path = self.folder / "ran"
        return path.read_text().splitlines() if path.exists() else []

    def let(self, gate: str) -> None:
        (self.folder / gate).touch()

    # -- the topics -------------------------------------------------------------------------

    def task(self, step: str, *arguments: Any, partition: int = 0, **fields: Any) -> None:
        fields.setdefault("node_id", fresh_name("n"))
        value = task_json(step, *arguments, results_topic=self.topics.attempt_results, **fields)
        self.put(self.topics.tasks("default"), value, partition)

    def put(self, topic: str, value: bytes, partition: int = 0, key: bytes = b"run-1") -> None:
        self._producer.produce(topic, value, key, partition, headers=[("ductor-wire", b"1")])
        assert self._producer.flush(10) == 0

    def reports(self, kind: str = "attempt.finished") -> list[dict[str, Any]]:
        """All that was reported so far."""
        return [report for _, report in self.stamped(kind)]

    def stamped(self, kind: str) -> list[tuple[int, dict[str, Any]]]:
        """The same, each with the broker's time of its arrival (ms)."""
        while (message := self._reader.poll(0.05)) is not None:
            if message.error() is None:
                self._seen.append((message.timestamp()[1], msgspec.json.decode(message.value() or b"")))
        return [(at, report) for at, report in self._seen if report["type"] == kind]

    def pass_by(self, ms: float) -> None:
        """Let that much time go by on the broker's clock, which stamps the records of a topic beside."""
        topic = self.topics.dead_letters
        configure(self.bootstrap, topic, APPENDED)
        stamps: list[int] = []

        def written(_: object, message: Message) -> None:
            stamps.append(message.timestamp()[1])

        def long_enough() -> bool:
            self._producer.produce(topic, b"tick", on_delivery=written)
            assert self._producer.flush(10) == 0
            return stamps[-1] - stamps[0] >= ms

        until(long_enough, within_ms=30_000, what=f"{ms} ms on the broker")

    def members(self) -> list[tuple[str, list[int]]]:
        """Who is in the group of the queue, and its partitions."""
        group = self.topics.worker_group("default")
        admin = AdminClient({"bootstrap.servers": self.bootstrap})  # held until it has answered
        found = admin.describe_consumer_groups([group])[group].result(10)
        return sorted(
            (each.member_id, [at.partition for at in each.assignment.topic_partitions]) for each in found.members
        )

    def outputs(self) -> list[Any]:
        return [report.get("output") for report in self.reports()]

    def committed(self, partition: int = 0) -> tuple[int, list[tuple[int, int]]]:
        """The group's offset and the runs in its metadata."""
        group = self.topics.worker_group("default")
        consumer = Consumer({"bootstrap.servers": self.bootstrap, "group.id": group})
        try:
            (at,) = consumer.committed([TopicPartition(self.topics.tasks("default"), partition)], 10)
        finally:
            consumer.close()
        return at.offset, decode_runs(at.offset, at.metadata or "")

    def close(self) -> None:
        for child in self.children:
            if child.poll() is None:
                child.kill()
            child.wait(10)
        self._reader.close()
        self._producer.flush(5)
