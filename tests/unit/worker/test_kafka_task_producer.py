"""A worker's producer over a client that the test plays: a full queue, refusals, a fatal error."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException
from support import until

from ductor_stream.kafka.task_producer import TaskProducer
from ductor_stream.ports import Outgoing, Undeliverable


class Client:
    """A producer that answers when the test says so."""

    def __init__(self) -> None:
        self.queued: list[tuple[bytes, Callable[..., None]]] = []
        self.refuses: list[Exception] = []
        self.purged = False
        self._lock = threading.Lock()

    def produce(self, topic: str, value: bytes, key: bytes, partition: int, on_delivery: Any, headers: Any) -> None:
        if self.refuses:
            raise self.refuses.pop(0)
        with self._lock:
            self.queued.append((value, on_delivery))

    def answer(self, error: KafkaError | None = None) -> None:
        with self._lock:
            queued, self.queued = self.queued, []
        for _, heard in queued:
            heard(error, None)

    def poll(self, timeout: float) -> int:
        threading.Event().wait(0.002)
        return 0

    def purge(self) -> None:
        self.purged = True

    def flush(self, timeout: float) -> int:
        if self.purged:
            self.answer(KafkaError(KafkaError._PURGE_QUEUE))
        return 0


class Rig:
    def __init__(self) -> None:
        self.clients: list[Client] = []
        self.heard: list[Undeliverable | None] = []
        self.producer = TaskProducer(self._make)

    def _make(self, heard: Callable[[KafkaError], None]) -> Any:
        self.error = heard
        self.clients.append(Client())
        return self.clients[-1]

    def send(self, *values: bytes, topic: str = "t") -> None:
        for value in values:
            self.producer.produce(Outgoing(topic, b"k", value), self.heard.append)

    @property
    def client(self) -> Client:
        return self.clients[-1]

    def waiting(self) -> list[bytes]:
        return [value for value, _ in self.client.queued]


@pytest.fixture
def rig() -> Iterator[Rig]:
    made = Rig()
    yield made
    made.producer.close(0.0)


def test_each_record_is_heard_of_once(rig: Rig) -> None:
    rig.send(b"1", b"2")
    assert rig.producer.flush(0.0) == 2
    rig.client.answer()
    assert rig.heard == [None, None]
    assert rig.producer.flush(0.0) == 0


def test_a_full_queue_is_waited_out_by_the_producers_own_thread(rig: Rig) -> None:
    rig.client.refuses = [BufferError(), BufferError()]
    rig.send(b"1")
    until(lambda: rig.waiting() == [b"1"])
    rig.client.answer()
    assert rig.heard == [None]


@pytest.mark.parametrize(
    ("code", "permanent"),
    [
        (KafkaError.MSG_SIZE_TOO_LARGE, True),
        (KafkaError.TOPIC_EXCEPTION, True),
        (KafkaError._MSG_TIMED_OUT, False),
        (KafkaError._UNKNOWN_TOPIC, False),
    ],
)
def test_refusals_say_whether_another_try_can_help(rig: Rig, code: int, permanent: bool) -> None:
    rig.send(b"1")
    rig.client.answer(KafkaError(code))
    rig.client.refuses = [KafkaException(KafkaError(code))]
    rig.send(b"2")
    assert [failed.permanent for failed in rig.heard if failed] == [permanent, permanent]


def test_what_cannot_even_be_handed_over_is_refused_for_good(rig: Rig) -> None:
    rig.client.refuses = [TypeError("no")]
    rig.send(b"1")
    assert [failed.permanent for failed in rig.heard if failed] == [True]


def test_after_a_fatal_error_another_client_sends_what_is_open_in_its_order(rig: Rig) -> None:
    rig.send(b"1", b"2", b"3")
    first = rig.client
    rig.error(KafkaError(KafkaError._FATAL, "out of order", True))
    until(lambda: len(rig.clients) == 2 and rig.waiting() == [b"1", b"2", b"3"])
    assert first.purged
    assert rig.heard == []
    rig.client.answer()
    assert rig.heard == [None, None, None]


def test_what_is_open_at_the_end_is_given_back() -> None:
    rig = Rig()
    rig.send(b"1")
    rig.producer.close(0.0)
    assert [(failed.error, failed.permanent) for failed in rig.heard if failed] == [("Local: Purged in queue", False)]


class SlowToEnd(Client):
    """Gives back what it holds when the test lets it."""

    def __init__(self) -> None:
        super().__init__()
        self.asked, self.may = threading.Event(), threading.Event()

    def produce(self, *record: Any, **more: Any) -> None:
        if self.purged:
            raise KafkaException(KafkaError(KafkaError._FATAL, "out of order", True))
        super().produce(*record, **more)

    def flush(self, timeout: float) -> int:
        if self.purged:
            self.asked.set()
            self.may.wait()
        return super().flush(timeout)


def test_what_is_handed_over_while_a_client_is_replaced_is_sent_once_and_in_order(rig: Rig) -> None:
    rig.clients.append(first := SlowToEnd())
    rig.producer._client = first  # type: ignore[assignment]
    rig.send(b"1")
    [(_, late)] = first.queued
    rig.error(KafkaError(KafkaError._FATAL, "out of order", True))
    assert first.asked.wait(30)
    rig.send(b"2", b"3")
    first.may.set()
    until(lambda: rig.client is not first and rig.waiting() == [b"1", b"2", b"3"])
    assert rig.heard == []
    late(KafkaError(KafkaError._PURGE_QUEUE), None)  # the former client's word, heard by another thread
    assert rig.heard == []
    rig.client.answer()
    late(None, None)
    assert rig.heard == [None, None, None]


def test_who_hears_may_produce_and_ask(rig: Rig) -> None:
    """No lock is held while somebody is told: receivers have locks of their own."""
    told: list[bytes] = []

    def again(_failed: Any) -> None:
        other = threading.Thread(target=rig.send, args=(b"2",))
        other.start()
        other.join(30)
        told.append(b"dead" if other.is_alive() else b"alive")

    rig.client.refuses = [TypeError("no")]
    rig.producer.produce(Outgoing("t", b"k", b"1"), again)
    assert told == [b"alive"]
    assert rig.waiting() == [b"2"]
