"""The clients: a paced stream of scripts (scripts.py), each message of which is sent until the broker has it.

Plain producers with plain JSON, as any service has (docs/wire.md): nothing of this library is in it. A message whose
delivery failed is sent again under the same id, for as long as it takes.
"""

from __future__ import annotations

import heapq
import itertools
import json
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

from confluent_kafka import KafkaError, Message, Producer

from chaos.records import Recorder
from chaos.scripts import PARTITIONERS, Letter, Scripts
from ductor_stream.kafka.options import client_logger

_AGAIN_S = 0.5
_TIMEOUT_MS = 10_000


@dataclass(frozen=True)
class Lost:
    """Offsets of ``run-events`` that a fault deleted before anybody had read them (``upto`` is not among them)."""

    incarnation: int
    partition: int
    start: int
    upto: int
    read_upto: int
    """What Postgres says was read: ``start``, or of a topic before this one, if nobody had noticed yet that it is another."""
    known_topic: str
    """The id of the topic of which it says so."""

    def holds(self, incarnation: int, partition: int, offset: int) -> bool:
        """Whether a record that stood there is one of them."""
        return (incarnation, partition) == (self.incarnation, self.partition) and self.start <= offset < self.upto


class Load:
    """Sends in a thread. ``hold`` stops it for a while, with nothing under way; ``lost`` sends again what a fault ate."""

    def __init__(self, bootstrap: str, topic: str, rate: float, seed: int, recorder: Recorder) -> None:
        self._bootstrap, self._topic, self._rate, self._recorder = bootstrap, topic, rate, recorder
        self._scripts = Scripts(seed)
        self._due: list[tuple[float, int, Letter]] = []
        self._order = itertools.count()
        self._placed: dict[str, tuple[Letter, int, int, int]] = {}
        self._flying = 0
        self._incarnation = 1
        self._lock = threading.RLock()
        self._going = threading.Event()
        self._closing = threading.Event()
        self._starting = threading.Event()
        self._producers = self._opened()
        self._thread = threading.Thread(target=self._run, name="chaos-load", daemon=True)
        self.started = 0

    def begin(self) -> None:
        """Start runs, from now on."""
        self._going.set()
        self._starting.set()
        self._thread.start()

    def finish(self, within_s: float) -> bool:
        """Start no more runs; whether everything that belongs to those under way was sent and acknowledged in time."""
        self._starting.clear()
        deadline = time.monotonic() + within_s
        while time.monotonic() < deadline:
            with self._lock:
                if not self._due and not self._flying:
                    return True
            time.sleep(0.1)
        return False

    def close(self) -> None:
        """End."""
        self._closing.set()
        self._going.set()
        if self._thread.ident is not None:
            self._thread.join(_TIMEOUT_MS / 1000 + 5)

    def hold(self) -> None:
        """Send nothing; returns when the fate of all that was sent is known."""
        self._going.clear()
        deadline = time.monotonic() + 3 * _TIMEOUT_MS / 1000
        while self._flying and time.monotonic() < deadline:
            time.sleep(0.02)
        if self._flying:
            raise TimeoutError("the broker neither takes nor refuses what clients have sent")

    def go_on(self) -> None:
        """Send again."""
        self._going.set()

    def renew(self) -> None:
        """The topic is another one now. Only while nothing is sent."""
        with self._lock:
            self._incarnation += 1
            self._producers = self._opened()

    @property
    def incarnation(self) -> int:
        """How often the topic was made."""
        return self._incarnation

    def lost(self, ranges: Sequence[Lost]) -> None:
        """These were deleted unread: note it, and send what stood there again."""
        for each in ranges:
            self._recorder.note("lost", **asdict(each))
        with self._lock:
            gone = [letter for letter, *place in self._placed.values() if any(r.holds(*place) for r in ranges)]
            for letter in gone:
                self._later(letter, _AGAIN_S)

    # -- in the thread --------------------------------------------------------------------------

    def _opened(self) -> dict[str, Producer]:
        options = {
            "bootstrap.servers": self._bootstrap,
            "acks": "all",
            "enable.idempotence": True,
            "linger.ms": 2,
            "message.timeout.ms": _TIMEOUT_MS,
            "reconnect.backoff.max.ms": 1_000,
            "topic.metadata.refresh.interval.ms": 2_000,
        }
        return {each: Producer({**options, "partitioner": each}, logger=client_logger) for each in PARTITIONERS}

    def _run(self) -> None:
        next_at = time.monotonic()
        while not self._closing.is_set():
            now = time.monotonic()
            if self._going.is_set():
                if self._starting.is_set() and now >= next_at:
                    # Behind after a pause: not all of it at once, but at the pace.
                    next_at = max(next_at, now - 1.0) + 1 / self._rate
                    self._start_one()
                self._send_due(now)
            for producer in list(self._producers.values()):
                producer.poll(0)
            self._closing.wait(0.005)
        for producer in self._producers.values():
            producer.flush(5)

    def _start_one(self) -> None:
        kind, script = self._scripts.next()
        self.started += 1
        start = script[0][1]
        self._recorder.note("run", run=start.run, kind=kind, plan=start.body["input"])
        with self._lock:
            for delay, letter in script:
                self._later(letter, delay)

    def _later(self, letter: Letter, delay_s: float) -> None:
        heapq.heappush(self._due, (time.monotonic() + delay_s, next(self._order), letter))

    def _send_due(self, now: float) -> None:
        with self._lock:
            while self._due and self._due[0][0] <= now:
                letter = heapq.heappop(self._due)[2]
                letter = replace(letter, tries=letter.tries + 1)
                try:
                    self._send(letter)
                except BufferError:
                    self._later(letter, _AGAIN_S)
                    return

    def _send(self, letter: Letter) -> None:
        incarnation = self._incarnation

        def told(error: KafkaError | None, message: Message) -> None:
            self._told(letter, incarnation, error, message)

        self._recorder.note("sent", id=letter.id, run=letter.run, type=letter.body["type"], tries=letter.tries)
        value = json.dumps(letter.body)
        self._producers[letter.partitioner].produce(self._topic, value, letter.run, on_delivery=told)
        self._flying += 1

    def _told(self, letter: Letter, incarnation: int, error: KafkaError | None, message: Message) -> None:
        with self._lock:
            self._flying -= 1
            if error is not None:
                self._recorder.note("refused", id=letter.id, error=error.str())
                self._later(letter, _AGAIN_S)
                if error.fatal():
                    self._producers = self._opened()
                return
            partition, offset = message.partition(), message.offset()
            assert partition is not None and offset is not None
            self._placed[letter.id] = (letter, incarnation, partition, offset)
            self._recorder.note("acked", id=letter.id, incarnation=incarnation, partition=partition, offset=offset)
