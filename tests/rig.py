"""A namespace over real Kafka and Postgres: coordinators in threads and processes, a plain worker, messages by hand."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import msgspec
import psycopg
from confluent_kafka import Consumer, Message, Producer, TopicPartition
from psycopg.rows import dict_row
from rig_app import make_app
from rig_rules import check_rules, rule_breaks
from rig_services import FAST, Child, Letter, Running, Told
from rig_worker import Answer, PlainWorker, doubled, quiet
from support import fresh_name, until

from ductor_stream.config import Settings
from ductor_stream.coordinator.config import CoordinatorConfig
from ductor_stream.coordinator.service import Coordinator
from ductor_stream.engine.ids import partition_of
from ductor_stream.errors import DuctorError
from ductor_stream.kafka.topics import AdminConfig, check_topics, create_topics, delete_topics, plan
from ductor_stream.ports import LocalWorkers
from ductor_stream.protocol.topics import Topics
from ductor_stream.telemetry.metrics import Metrics
from ductor_stream.wiring.coordinators import open_coordinator

__all__ = ["CRC32", "FAST", "HOME", "Child", "Letter", "Rig", "Running", "check_rules", "opened", "rule_breaks"]

HOME, CRC32 = "murmur2_random", "consistent_random"
"""Partitioners of a producer: the Java client's, and librdkafka's own default."""


_producers: dict[tuple[str, str], Producer] = {}
"""By address and partitioner. They outlive their rig: a new one takes half a second to its first record."""


class Rig:
    """One namespace: ``topics``, ``database``, and everything that a test does with it. Opened by ``opened``."""

    def __init__(self, bootstrap: str, database: str, folder: Path, *, partitions: int, queues: Sequence[str]) -> None:
        self.bootstrap, self.database, self.folder = bootstrap, database, folder
        self.namespace = fresh_name("c")
        self.topics = Topics(self.namespace)
        self.admin = AdminConfig(bootstrap=bootstrap, topics=self.topics)
        self.plans = plan(self.topics, queues, partitions=partitions)
        create_topics(self.admin, self.plans)
        self.partitions = partitions
        self._closing = contextlib.ExitStack()
        self._connection: psycopg.Connection[dict[str, Any]] | None = None

    def close(self) -> None:
        """End all that was started, the latest first, and leave no topics behind: a broker slows down with them."""
        self._closing.close()
        with contextlib.suppress(DuctorError):
            delete_topics(self.admin, [each.name for each in self.plans])
        if self._connection is not None:
            self._connection.close()

    @staticmethod
    def fast(**changes: Any) -> CoordinatorConfig:
        """The tests' configuration, changed."""
        return msgspec.structs.replace(FAST, **changes)

    # -- services ---------------------------------------------------------------------------

    def coordinator(
        self,
        config: CoordinatorConfig = FAST,
        *,
        database: str | None = None,
        prepare: Callable[[Coordinator], object] | None = None,
        ready: bool = True,
        protocol: Literal["auto", "classic"] = "auto",
        instance: str | None = None,
        local: LocalWorkers | None = None,
    ) -> Running:
        """A coordinator in a thread; ``prepare`` may lay hands on it before it runs. Returns when it is ready."""
        settings = Settings(
            kafka_bootstrap=self.bootstrap,
            kafka_protocol=protocol,
            kafka_instance_id=instance,
            kafka={"fetch.wait.max.ms": "20"},
            database_url=database or self.database,
        )
        metrics = Metrics()
        coordinator = open_coordinator(make_app(self.namespace), settings, metrics, local, config)
        if prepare is not None:
            prepare(coordinator)
        running = Running(coordinator, metrics)
        self._closing.callback(lambda: running.stop() if running.alive else None)
        if ready:
            until(lambda: running.owned and not running.reasons(), within_ms=30_000, what="a ready coordinator")
        return running

    def child(self, point: str = "none", *, instance: str = "-") -> Child:
        """A coordinator process that dies at ``point``; returns when it owns partitions."""
        log = self.folder / f"{fresh_name('child')}.log"
        child = Child(self.bootstrap, self.database, self.namespace, instance, point, log=log)
        self._closing.callback(child.kill)
        child.until_said("ready")
        return child

    def worker(self, answer: Answer = doubled, queue: str = "default") -> PlainWorker:
        """A plain worker of that queue."""
        worker = PlainWorker(self.bootstrap, self.topics.tasks(queue), self.topics.worker_group(queue), answer)
        self._closing.callback(worker.close)
        return worker

    # -- topics -----------------------------------------------------------------------------

    def delete(self, *names: str) -> None:
        """Delete topics (all of the namespace, if none is named)."""
        delete_topics(self.admin, names or [each.name for each in self.plans])

    def create(self) -> None:
        """Create those topics of the plan that are missing; a deleted one may take a moment to be gone."""

        def complete() -> bool:
            create_topics(self.admin, self.plans)
            return not check_topics(self.admin, self.plans)

        until(complete, what="all topics of the plan")

    def send(self, topic: str, key: str | bytes | None, *values: dict[str, Any] | bytes | None, **how: Any) -> None:
        """Produce records; they are in the log when this returns. ``how``: partitioner, partition, headers."""
        place = (self.bootstrap, how.pop("partitioner", HOME))
        producer = _producers.get(place)
        if producer is None:
            options = {"bootstrap.servers": self.bootstrap, "partitioner": place[1], "linger.ms": "0"}
            options |= {"acks": "all", "enable.idempotence": "true", "message.max.bytes": "2000000"}
            producer = _producers[place] = Producer(options, logger=quiet)
        failed: list[Any] = []
        for value in values:
            body = json.dumps(value).encode() if isinstance(value, dict) else value
            producer.produce(topic, body, key, on_delivery=lambda e, m: failed.append(e) if e else None, **how)
        assert producer.flush(30) == 0
        assert failed == []

    def renew_clients(self) -> None:
        """Forget what the producers know of the topics: partitions were added, say."""
        _producers.clear()

    def start(self, *run_ids: str, workflow: str = "chain", input: Any = 3, **fields: Any) -> None:
        """Produce run starts. ``partitioner`` goes to the producer, other fields into the message."""
        how = {name: fields.pop(name) for name in ("partitioner", "partition") if name in fields}
        for run_id in run_ids:
            body = {"type": "run.start", "run_id": run_id, "workflow": workflow, "input": input, **fields}
            self.send(self.topics.run_events, run_id, body, **how)

    def signal(self, run_id: str, payload: Any, **fields: Any) -> None:
        """Produce a signal ``word``."""
        how = {name: fields.pop(name) for name in ("partitioner", "partition") if name in fields}
        body = {"type": "run.signal", "run_id": run_id, "name": "word", "payload": payload, **fields}
        self.send(self.topics.run_events, run_id, body, **how)

    def read(self, topic: str) -> list[Message]:
        """All records of a topic, partition by partition."""
        consumer = Consumer(
            {"bootstrap.servers": self.bootstrap, "group.id": "unused", "fetch.wait.max.ms": 20},
            logger=quiet,
        )
        found: list[Message] = []
        try:
            for partition in consumer.list_topics(topic, 10).topics[topic].partitions:
                start, end = consumer.get_watermark_offsets(TopicPartition(topic, partition), 10)
                consumer.assign([TopicPartition(topic, partition, start)])
                while start < end:
                    message = consumer.poll(10)
                    assert message is not None, f"{topic}/{partition} is silent at {start} of {end}"
                    assert message.error() is None, message.error()
                    found.append(message)
                    start = (message.offset() or 0) + 1
        finally:
            consumer.close()
        return found

    def letters(self) -> list[Letter]:
        """All dead letters."""
        return [Letter(message) for message in self.read(self.topics.dead_letters)]

    def told(self) -> list[Told]:
        """All lifecycle events, as they were written: what is redriven is told again."""
        return [Told(message) for message in self.read(self.topics.run_lifecycle)]

    def home(self, run_id: str) -> int:
        """The partition that a run lives on."""
        return partition_of(run_id.encode(), self.partitions)

    # -- Postgres ---------------------------------------------------------------------------

    def rows(self, query: str, *params: Any) -> list[dict[str, Any]]:
        """Rows of this namespace: ``{ns}`` in the query stands for its number."""
        query = query.replace("{ns}", f"(select ns from eec_namespace where name = '{self.namespace}')")
        with contextlib.suppress(psycopg.OperationalError):
            return self._ask(query, params)
        return self._ask(query, params)  # over another connection: the test has killed Postgres in between

    def _ask(self, query: str, params: Sequence[Any]) -> list[dict[str, Any]]:
        if self._connection is None or self._connection.closed:
            self._connection = psycopg.connect(self.database, autocommit=True, row_factory=dict_row)
        cursor = self._connection.execute(query, params)  # type: ignore[arg-type]
        return cursor.fetchall() if cursor.description is not None else []

    def run(self, run_id: str) -> dict[str, Any]:
        """A run's row; empty when there is none. ``result`` and ``error`` decoded."""
        for row in self.rows("select * from eec_workflow_run where ns = {ns} and run_id = %s", run_id):
            decoded = {name: json.loads(bytes(row[name])) for name in ("result", "error") if row[name] is not None}
            return row | decoded
        return {}

    def until_status(self, status: str, *run_ids: str, within_ms: float = 30_000) -> None:
        """Wait until all these runs have that status."""

        def look() -> bool:
            rows = self.rows("select run_id, status, reason from eec_workflow_run where ns = {ns}")
            seen = {row["run_id"]: (row["status"], row["reason"]) for row in rows if row["run_id"] in run_ids}
            odd = {run_id: seen.get(run_id) for run_id in run_ids if seen.get(run_id, ("",))[0] != status}
            assert not odd, odd
            return True

        until(look, within_ms=within_ms, what=f"{len(run_ids)} run(s) {status}")

    def attempts(self, run_id: str) -> list[dict[str, Any]]:
        """Lines about attempts of a run."""
        return self.rows("select * from eec_workflow_step_attempt where ns = {ns} and run_id = %s order by at", run_id)

    def check(self, *but: str) -> None:
        """The rules hold and all is at rest; ``but`` are runs whose rows the test itself has touched."""
        check_rules(self.database, self.namespace, but)


@contextmanager
def opened(
    bootstrap: str, database: str, folder: Path, *, partitions: int = 2, queues: Iterable[str] = ("default",)
) -> Iterator[Rig]:
    """A rig whose topics exist; the database must be migrated."""
    rig = Rig(bootstrap, database, folder, partitions=partitions, queues=list(queues))
    try:
        yield rig
    finally:
        rig.close()
