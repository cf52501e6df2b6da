"""What a client with a subscription sees: every lifecycle event and every dead letter, noted as it comes."""

from __future__ import annotations

import json
import threading
import time
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, Message, TopicPartition

from chaos.brokers import Brokers
from chaos.records import Recorder
from ductor_stream.kafka.options import client_logger

CAUGHT_UP_WITHIN_S = 60.0


class Observer:
    """Reads topics from their beginning in a thread, past the network's faults."""

    def __init__(self, brokers: Brokers, lifecycle: str, letters: str, recorder: Recorder) -> None:
        self._brokers = brokers
        self._lifecycle, self._recorder = lifecycle, recorder
        self._topics = (lifecycle, letters)
        self._consumer = Consumer(
            {
                "bootstrap.servers": brokers.direct,
                "group.id": "chaos-observer",  # never joined
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "isolation.level": "read_committed",
                "reconnect.backoff.max.ms": 1_000,
            },
            logger=client_logger,
        )
        self._next: dict[tuple[str, int], int] = {}
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="chaos-observer", daemon=True)
        self.closed_runs = 0
        """Runs of which an end was heard, as they came: for the screen alone."""

    def begin(self) -> None:
        """Read, from now on."""
        places: list[TopicPartition] = []
        for topic in self._topics:
            for partition in self._consumer.list_topics(topic, 15).topics[topic].partitions:
                places.append(TopicPartition(topic, partition, OFFSET_BEGINNING))
                self._next[topic, partition] = 0
        self._consumer.assign(places)
        self._thread.start()

    def catch_up(self) -> None:
        """Return when all that is there now was read. Raises TimeoutError."""
        deadline = time.monotonic() + CAUGHT_UP_WITHIN_S
        for topic in self._topics:
            for partition, (_, end) in self._brokers.watermarks(topic).items():
                while self._next[topic, partition] < end:
                    if time.monotonic() > deadline:
                        raise TimeoutError(f"{topic}/{partition} was not read to its end")
                    time.sleep(0.05)

    def close(self) -> None:
        """End."""
        self._closing.set()
        if self._thread.ident is not None:
            self._thread.join(15)
        self._consumer.close()

    def _run(self) -> None:
        while not self._closing.is_set():
            for message in self._consumer.consume(500, 0.2):
                if message.error() is None:
                    self._note(message)

    def _note(self, message: Message) -> None:
        topic, partition, offset = message.topic() or "", message.partition() or 0, message.offset() or 0
        found: Any = message.headers() or []
        headers = {name: (value or b"").decode("utf-8", "replace") for name, value in found}
        if topic == self._lifecycle:
            data = json.loads(message.value() or b"{}")
            self._recorder.note("lifecycle", id=headers.get("ce_id"), type=headers.get("ce_type"), data=data)
            self.closed_runs += data.get("status") in _ENDS
        else:
            told = {
                name.removeprefix("ductor-"): value for name, value in headers.items() if name.startswith("ductor-")
            }
            self._recorder.note("letter", key=(message.key() or b"").decode("utf-8", "replace"), **told)
        self._next[topic, partition] = offset + 1


_ENDS = frozenset({"completed", "failed", "cancelled", "terminated", "timed_out"})
