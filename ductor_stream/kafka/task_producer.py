"""A worker's producer: any thread hands records over, one thread hears what became of them.

Delivery: at least once, in order per key (idempotent, acks=all). Nothing here blocks the caller: a full queue
or a lost client is dealt with in the producer's own thread.
"""

from __future__ import annotations

import itertools
import logging
import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Producer

from ductor_stream.kafka.options import is_fatal
from ductor_stream.kafka.producer import KEY_DECIDES, PERMANENT, PURGE_SECONDS, illegal
from ductor_stream.kafka.repeats import REPEATS
from ductor_stream.ports import Delivered, Outgoing, Undeliverable

logger = logging.getLogger("ductor_stream.kafka.task_producer")
logger.addFilter(REPEATS)  # what a client hears of its connections comes many times a second

POLL_SECONDS = 0.1
"""How long the thread sleeps in the driver at most; it wakes it when something was answered."""


class TaskProducer:
    """An idempotent producer for many threads. ``make`` builds the client, and another after a fatal error."""

    def __init__(self, make: Callable[[Callable[[KafkaError], None]], Producer]) -> None:
        self._make = make
        self._numbers = itertools.count()
        self._open: dict[int, tuple[Outgoing, Delivered]] = {}
        self._later: deque[int] = deque()
        self._fatal: KafkaError | None = None
        self._replacing = False
        self._lock = threading.Lock()  # one order for all threads; nobody is told anything while it is held
        self._client = make(self._heard_error)
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="kafka-task-producer", daemon=True)
        self._thread.start()

    def produce(self, record: Outgoing, delivered: Delivered) -> None:
        """Queue a record; ``delivered`` is called once, from the producer's thread, or at once where it is illegal."""
        with self._lock:
            number = next(self._numbers)
            self._open[number] = (record, delivered)
            problem = self._queue(number)
        self._refused(number, problem)

    def flush(self, timeout: float) -> int:
        """Wait at most ``timeout`` seconds for acknowledgements; returns how many records are still open."""
        self._client.flush(timeout)
        return len(self._open)

    def close(self, timeout: float) -> None:
        """Flush, then end; what is open then is reported as not taken (it may still have landed)."""
        self.flush(timeout)
        self._closed = True
        self._thread.join(2 * POLL_SECONDS + 1)
        self._client.purge()
        self._client.flush(PURGE_SECONDS)
        for number in list(self._open):
            self._fail(number, "the producer was closed", permanent=False)

    # -- inside ------------------------------------------------------------------------------

    def _queue(self, number: int) -> KafkaError | str | None:
        """Hand a record to the client, whose lock is held; what is wrong with it, if it is refused at once."""
        if number not in self._open:
            return None
        record, _ = self._open[number]
        if wrong := illegal(record.topic):
            return wrong
        headers: Any = record.headers
        try:
            self._client.produce(
                record.topic,
                record.value,
                record.key,
                KEY_DECIDES if record.partition is None else record.partition,
                on_delivery=partial(self._heard, number, self._client),
                headers=headers,
            )
        except BufferError:
            self._later.append(number)
        except KafkaException as error:
            refused: KafkaError = error.args[0]
            return refused
        except (TypeError, ValueError, UnicodeError) as error:
            # The client could not even encode it: a topic with U+0000, a header that is not bytes.
            return str(error)
        return None

    def _heard(self, number: int, client: Producer, error: KafkaError | None, _message: Any) -> None:
        if error is None:
            if (found := self._open.pop(number, None)) is not None:
                found[1](None)
        elif client is self._client and not self._replacing:
            self._refused(number, error)
        # Else it stays open, and the next client sends it, or has already.

    def _refused(self, number: int, error: KafkaError | str | None) -> None:
        if isinstance(error, str):
            self._fail(number, error, permanent=True)
        elif error is not None and is_fatal(error):
            self._fatal = self._fatal or error  # it stays open, and the next client sends it
        elif error is not None and not self._replacing:
            self._fail(number, error.str(), permanent=error.code() in PERMANENT)

    def _fail(self, number: int, error: str, *, permanent: bool) -> None:
        if (found := self._open.pop(number, None)) is not None:
            record, delivered = found
            delivered(Undeliverable(record, error, permanent))

    def _heard_error(self, error: KafkaError) -> None:
        if is_fatal(error):
            self._fatal = self._fatal or error
        logger.log(logging.ERROR if is_fatal(error) else logging.WARNING, "producer: %s", error.str())

    def _run(self) -> None:
        while not self._closed:
            try:
                self._client.poll(POLL_SECONDS)
                for _ in range(len(self._later)):
                    with self._lock:
                        number = self._later.popleft()
                        problem = self._queue(number)
                    self._refused(number, problem)
                if self._fatal is not None:
                    self._replace(self._fatal)
            except Exception:
                # A receiver that raises, or whatever the driver comes up with: results must go on flowing.
                logger.exception("the producer's thread stumbled")

    def _replace(self, error: KafkaError) -> None:
        """After a fatal error nothing more leaves this client: another one sends what is open, in its order."""
        logger.error("fatal producer error, making a new producer: %s", error.str())
        self._replacing = True
        self._client.purge()
        self._client.flush(PURGE_SECONDS)
        with self._lock:
            self._client = self._make(self._heard_error)
            self._fatal = None
            self._replacing = False
            self._later.clear()
            refused = [(number, self._queue(number)) for number in sorted(self._open)]
        for number, problem in refused:
            self._refused(number, problem)
