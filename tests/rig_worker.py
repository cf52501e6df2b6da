"""A worker that knows the page of the wire alone: plain confluent-kafka and json, in a thread."""

from __future__ import annotations

import json
import logging
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

from confluent_kafka import Consumer, KafkaException, Producer

quiet = logging.getLogger("rig.kafka")
"""Where the tests' own clients complain about brokers that a test has killed."""

Answer = Callable[[dict[str, Any]], dict[str, Any] | None]
"""What becomes of a task: the fields of its result, or None for silence."""


def doubled(task: dict[str, Any]) -> dict[str, Any] | None:
    """The steps ``double`` and ``size``, done."""
    if task["step"] == "size":
        return {"outcome": "completed", "output": len(task["input"][0])}
    return {"outcome": "completed", "output": task["input"][0] * 2}


def silent(task: dict[str, Any]) -> dict[str, Any] | None:
    """Takes the task and is never heard of again."""
    return None


def fence(task: dict[str, Any]) -> dict[str, Any]:
    """What a worker echoes."""
    return {name: task[name] for name in ("run_id", "execution", "node_id", "generation")}


class PlainWorker:
    """Executes the tasks of one queue until ``close``. Delivery: at least once, like every worker.

    ``tasks`` is every record that was read, ``effects`` counts executions by idempotency key.
    """

    def __init__(self, bootstrap: str, queue: str, group: str, answer: Answer = doubled) -> None:
        self.tasks: list[dict[str, Any]] = []
        self.effects: Counter[str] = Counter()
        self._answer = answer
        options = {
            "bootstrap.servers": bootstrap,
            "reconnect.backoff.max.ms": 500,
            "topic.metadata.refresh.interval.ms": 1000,
        }
        self._producer = Producer(options | {"acks": "all", "enable.idempotence": True, "linger.ms": 0}, logger=quiet)
        self._consumer = Consumer(
            options
            | {
                "group.id": group,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                "fetch.wait.max.ms": 20,
            },
            logger=quiet,
        )
        self._consumer.subscribe([queue])
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="plain-worker", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop, and leave the group."""
        self._closing.set()
        self._thread.join(20)
        assert not self._thread.is_alive(), "the plain worker does not end"

    def _run(self) -> None:
        while not self._closing.is_set():
            message = self._consumer.poll(0.05)
            self._producer.poll(0)
            if message is None or message.error() is not None:
                continue
            value = message.value()
            assert value is not None
            self._execute(json.loads(value))
            try:
                self._consumer.commit(message, asynchronous=True)
            except KafkaException:
                continue  # the topic is gone: the task may come again, which a worker must bear
        self._producer.flush(5)
        self._consumer.close()

    def _execute(self, task: dict[str, Any]) -> None:
        self.tasks.append(task)
        answer = self._answer(task)
        if answer is None:
            return
        self.effects[task["idempotency_key"]] += 1
        result = {"type": "attempt.finished", **fence(task), "worker": "plain", **answer}
        self._producer.produce(task["results_topic"], key=task["run_id"], value=json.dumps(result))
