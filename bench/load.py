"""The load: starts runs and hears of their ends, as lean as a client can be, from this one thread.

Runs are asked for on ``run-events`` with the product's own encoder and producer options, and their ends are heard on
``run-lifecycle``: what is timed is what a caller sees.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec
from confluent_kafka import Consumer, Message, Producer, TopicPartition

from ductor_stream.config import Settings
from ductor_stream.engine.events import RunStarted, SignalReceived
from ductor_stream.kafka.options import client_options, open_client
from ductor_stream.protocol.requests import Request, RequestEncoder
from ductor_stream.protocol.topics import Topics

_ENDS = {b"ductor.run.completed": "completed"}
_FAULTS = frozenset(
    b"ductor." + kind
    for kind in (b"run.failed", b"run.cancelled", b"run.terminated", b"run.timed_out", b"run.suspended")
)
_AT_ONCE = 500
DRAIN_WITHIN_S = 120.0


class RunWentWrong(RuntimeError):
    """A measured run ended otherwise than by completing: the figures are void."""


class Load:
    """Starts runs of one namespace. ``begun`` maps each run that was started and not heard of to its start."""

    def __init__(self, settings: Settings, topics: Topics) -> None:
        bootstrap = settings.need_kafka()
        self._encoder = RequestEncoder(topics)
        self._producer = open_client(Producer, client_options("producer", bootstrap, {}))
        self._consumer = open_client(
            Consumer, client_options("consumer", bootstrap, {}, group_id="bench-load", fetch_wait_max_ms=500)
        )
        self._follow(topics.run_lifecycle)
        self.begun: dict[str, float] = {}

    def start(self, workflow: str, input: Any, run_id: str = "") -> str:
        """Ask for a run; returns at once."""
        run_id = run_id or uuid.uuid4().hex
        self.begun[run_id] = time.perf_counter()
        self.leave(workflow, input, run_id)
        return run_id

    def leave(self, workflow: str, input: Any, run_id: str) -> None:
        """Ask for a run whose end nobody waits for."""
        self._send(run_id, RunStarted(workflow, "", msgspec.json.encode(input), uuid.uuid4().hex))

    def signal(self, run_id: str, name: str, payload: Any) -> None:
        """Send a signal."""
        self._send(run_id, SignalReceived(uuid.uuid4().hex, name, msgspec.json.encode(payload)))

    def flush(self) -> None:
        """Return when the broker has all that was asked for."""
        self._producer.flush(DRAIN_WITHIN_S)

    def ended(self, timeout: float) -> list[float]:
        """Wait at most so many seconds; seconds from start to end of each run that was heard of. Raises RunWentWrong."""
        return [took for _, took in self.heard(timeout)]

    def heard(self, timeout: float) -> list[tuple[str, float]]:
        """As ``ended``, with the run's id."""
        self._producer.poll(0)
        first = self._consumer.poll(timeout)
        if first is None:
            return []
        # consume(n, t) waits all of t unless n came: the first record is waited for, the rest is what is there.
        messages = [first, *self._consumer.consume(_AT_ONCE, 0)]
        now = time.perf_counter()
        begun = self.begun
        found = []
        for message in messages:
            run_id = self._end_of(message)
            if run_id is not None and run_id in begun:
                found.append((run_id, now - begun.pop(run_id)))
        return found

    def drain(self, within_s: float = DRAIN_WITHIN_S) -> list[float]:
        """Wait until every run that was started has ended."""
        deadline = time.monotonic() + within_s
        found: list[float] = []
        while self.begun:
            found += self.ended(0.5)
            if time.monotonic() > deadline:
                raise RunWentWrong(
                    f"{len(self.begun)} run(s) have not ended after {within_s:g} s, as {next(iter(self.begun))}"
                )
        return found

    def close(self) -> None:
        """Let go of Kafka."""
        self._producer.flush(10)
        self._consumer.close()

    def _send(self, run_id: str, request: Request) -> None:
        record = self._encoder.encode(run_id, request)
        headers: Any = record.headers
        while True:
            try:
                self._producer.produce(record.topic, record.value, record.key, headers=headers)
                return
            except BufferError:
                self._producer.poll(0.1)

    def _follow(self, topic: str) -> None:
        partitions = self._consumer.list_topics(topic, 15).topics[topic].partitions
        places = [TopicPartition(topic, each) for each in partitions]
        for place in places:
            place.offset = self._consumer.get_watermark_offsets(place, 15)[1]
        self._consumer.assign(places)

    def _end_of(self, message: Message) -> str | None:
        if message.error() is not None:
            raise RunWentWrong(f"run-lifecycle cannot be read: {message.error()}")
        headers: Any = message.headers()
        kind = next(value for name, value in headers if name == "ce_type")
        if kind in _FAULTS:
            raise RunWentWrong(f"{kind.decode()}: {(message.value() or b'').decode()[:500]}")
        return (message.key() or b"").decode() if kind in _ENDS else None


@dataclass
class ClosedLoop:
    """Keeps so many runs in flight: whenever one ends, another is started."""

    load: Load
    start: Callable[[], object]
    in_flight: int
    _running: int = field(default=0, init=False)

    def run_for(self, seconds: float) -> list[float]:
        """Go on for so long; seconds from start to end of each run that ended meanwhile."""
        deadline = time.perf_counter() + seconds
        found: list[float] = []
        while (left := deadline - time.perf_counter()) > 0:
            for _ in range(self.in_flight - self._running):
                self.start()
            self._running = self.in_flight
            ended = self.load.ended(min(left, 0.5))
            self._running -= len(ended)
            found += ended
        return found


@dataclass
class Paced:
    """Starts so many runs per second, evenly, whatever becomes of them."""

    load: Load
    start: Callable[[], object]
    rate: float

    def run_for(self, seconds: float) -> list[float]:
        """Go on for so long; seconds from start to end of each run that ended meanwhile."""
        began = time.perf_counter()
        started, found = 0, []
        while (now := time.perf_counter() - began) < seconds:
            for _ in range(int(now * self.rate) - started):
                self.start()
                started += 1
            found += self.load.ended(max(0.0, min((started + 1) / self.rate, seconds) - (time.perf_counter() - began)))
        return found
