"""``kafka.publish``: one attempt of a Kafka step.

Delivery: at least once (idempotent producer, acks=all); the attempt ends when the broker has taken the record.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Any

import msgspec
from confluent_kafka import KafkaError, Producer

from ductor_stream.config import Settings
from ductor_stream.engine import values
from ductor_stream.errors import InvalidDefinition, RetryableError, TerminalError
from ductor_stream.kafka.options import HeardProducer, client_options, open_client
from ductor_stream.kafka.task_producer import TaskProducer
from ductor_stream.ports import Outgoing, Undeliverable
from ductor_stream.protocol.topics import Topics
from ductor_stream.templates import Template
from ductor_stream.work import KafkaStep
from ductor_stream.worker.context import current_attempt

KEY_HEADER = "idempotency-key"
"""The header that carries the attempt's idempotency key."""

CLOSE_S = 5.0
"""How long the end waits for records that are on their way."""


def opener(settings: Settings) -> Callable[[], AsyncIterator[TaskProducer]]:
    """What opens the producer of all Kafka steps of a loop. Raises InvalidConfig when it is called."""

    def make(heard: Callable[[KafkaError], None]) -> Producer:
        # A broker refuses a whole batch for one record that is over the topic's limit, which is the user's and may be
        # small: alone in its batch, a record fails no other run's (R11).
        options = client_options("producer", settings.need_kafka(), settings.kafka, batch_num_messages=1)
        return open_client(HeardProducer, options | {"error_cb": heard})

    async def open_producer() -> AsyncIterator[TaskProducer]:
        producer = TaskProducer(make)
        try:
            yield producer
        finally:
            await asyncio.to_thread(producer.close, CLOSE_S)

    return open_producer


def refuse_ours(topic: str, topics: Topics) -> None:
    """Raise InvalidDefinition for a topic of an engine, this one's or a neighbour's: those have a contract."""
    start = topics.prefix or f"{topics.namespace}."
    if topic.startswith(start):
        raise InvalidDefinition(
            f"topic {topic!r} begins with {start!r}, as the engine's own do: start and signal runs by a client"
        )


class Publisher:
    """The function of a Kafka step."""

    def __init__(self, step: KafkaStep[..., Any]) -> None:
        record = step.record
        input = step.parameters.all[0].type
        self._topic, self._value = record.topic, record.value
        self._key = None if record.key is None else Template(record.key, input, "key")
        self._headers = {name: Template(text, input, f"header {name}") for name, text in record.headers.items()}

    async def __call__(self, input: Any, *, producer: TaskProducer) -> None:
        """Publish it, and wait until it was taken. Raises RetryableError and TerminalError."""
        outgoing = self._record(msgspec.json.decode(values.encode(input)))
        loop = asyncio.get_running_loop()
        answered: asyncio.Future[Undeliverable | None] = loop.create_future()

        def settle(problem: Undeliverable | None) -> None:
            if not answered.done():
                answered.set_result(problem)

        def delivered(problem: Undeliverable | None) -> None:
            with suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(settle, problem)

        producer.produce(outgoing, delivered)
        problem = await answered
        if problem is not None and problem.permanent:
            raise TerminalError(f"topic {self._topic}: {problem.error}", type="KafkaRefused")
        if problem is not None:
            raise RetryableError(f"topic {self._topic}: {problem.error}", type="KafkaUndelivered")

    def _record(self, plain: Any) -> Outgoing:
        attempt = current_attempt()
        key = attempt.run_id if self._key is None else self._key.fill(plain)
        headers = [(name, text.fill(plain).encode()) for name, text in self._headers.items()]
        headers.append((KEY_HEADER, attempt.idempotency_key.encode()))
        value = plain if self._value is None else plain.get(self._value)
        return Outgoing(self._topic, key.encode(), values.encode(value), headers)
