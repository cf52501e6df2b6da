"""The bookkeeping of acknowledgements, over a client that does what the test says."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from ductor_stream.kafka import producer as module
from ductor_stream.kafka.producer import RecordProducer
from ductor_stream.ports import Outgoing, Undeliverable


class FakeClient:
    """Queues reports; ``answers`` says what becomes of a record when it is flushed: an error, or None."""

    def __init__(self) -> None:
        self.queued: list[tuple[Outgoing, Callable[[KafkaError | None, Any], None]]] = []
        self.answers: Callable[[Outgoing], KafkaError | None] = lambda record: None
        self.refuse: list[Exception] = []
        self.silent = False

    def produce(self, topic: str, value: bytes, key: bytes, partition: int, *, on_delivery: Any, headers: Any) -> None:
        if self.refuse:
            raise self.refuse.pop(0)
        self.queued.append((Outgoing(topic, key, value, headers, None if partition < 0 else partition), on_delivery))

    def poll(self, timeout: float) -> int:
        return 0

    def flush(self, timeout: float) -> int:
        queued, self.queued = ([], self.queued) if self.silent else (self.queued, [])
        for record, heard in queued:
            heard(self.answers(record), None)
        return len(self.queued)

    def purge(self) -> None:
        self.answers = lambda record: KafkaError(KafkaError._PURGE_QUEUE)


class Bench:
    """A ``RecordProducer`` over fake clients, and what it reported."""

    def __init__(self) -> None:
        self.clients: list[FakeClient] = []
        self.producer = RecordProducer(self._make)  # type: ignore[arg-type]
        self.calls: list[list[tuple[bytes, bool]]] = []

    def _make(self, heard: Callable[[KafkaError], None]) -> FakeClient:
        self.clients.append(FakeClient())
        self.heard_error = heard
        return self.clients[-1]

    def acknowledged(self, failed: Sequence[Undeliverable]) -> None:
        self.calls.append([(each.record.value, each.permanent) for each in failed])

    def produce(self, *values: bytes, partition: int | None = None) -> None:
        self.producer.produce([Outgoing("t", b"k", value, [], partition) for value in values], self.acknowledged)


@pytest.fixture
def bench() -> Bench:
    return Bench()


def failing(*values: bytes, code: int) -> Callable[[Outgoing], KafkaError | None]:
    return lambda record: KafkaError(code) if record.value in values else None


def test_the_error_of_an_earlier_record_is_heard_though_the_last_one_landed(bench: Bench) -> None:
    bench.clients[0].answers = failing(b"a", code=KafkaError._MSG_TIMED_OUT)
    bench.produce(b"a", b"b", b"c")
    assert bench.producer.flush(1) == 0
    assert bench.calls == [[(b"a", False)]]


@pytest.mark.parametrize(
    ("code", "permanent"),
    [
        (KafkaError.MSG_SIZE_TOO_LARGE, True),
        (KafkaError.TOPIC_EXCEPTION, True),
        (KafkaError.INVALID_TIMESTAMP, False),
        (KafkaError.INVALID_RECORD, False),
        (KafkaError._INVALID_DIFFERENT_RECORD, False),
        (KafkaError._UNKNOWN_TOPIC, False),
        (KafkaError.UNKNOWN_TOPIC_OR_PART, False),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, False),
        (KafkaError._MSG_TIMED_OUT, False),
        (KafkaError.NOT_ENOUGH_REPLICAS, False),
    ],
)
def test_what_a_later_try_can_mend_is_not_permanent(bench: Bench, code: int, permanent: bool) -> None:
    bench.clients[0].answers = failing(b"a", code=code)
    bench.produce(b"a")
    bench.producer.flush(1)
    assert bench.calls == [[(b"a", permanent)]]


def test_a_record_refused_at_once_counts_like_one_refused_later(bench: Bench) -> None:
    bench.clients[0].refuse = [KafkaException(KafkaError(KafkaError.MSG_SIZE_TOO_LARGE))]
    bench.produce(b"large", b"small")
    assert bench.calls == []
    bench.producer.flush(1)
    assert bench.calls == [[(b"large", True)]]


def test_what_the_client_cannot_encode_is_permanent(bench: Bench) -> None:
    bench.clients[0].refuse = [ValueError("embedded null character")]
    bench.produce(b"a")
    bench.producer.serve()
    assert bench.calls == [[(b"a", True)]]


def test_a_full_queue_is_waited_out(bench: Bench) -> None:
    bench.clients[0].refuse = [BufferError(), BufferError()]
    bench.produce(b"a")
    bench.producer.flush(1)
    assert bench.calls == [[]]


def test_a_queue_that_stays_full_gives_the_record_back(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FULL_QUEUE_SECONDS", 0.0)
    bench.clients[0].refuse = [BufferError()] * 10
    bench.produce(b"a")
    bench.producer.serve()
    assert bench.calls == [[(b"a", False)]]


def test_a_partition_that_is_gone_is_left_to_the_key(bench: Bench) -> None:
    bench.clients[0].answers = lambda record: (
        None if record.partition is None else KafkaError(KafkaError._UNKNOWN_PARTITION)
    )
    bench.produce(b"a", partition=9)
    assert bench.producer.flush(1) == 0
    assert bench.calls == [[]]


def test_a_fatal_error_gives_all_back_once_and_makes_another_client(bench: Bench) -> None:
    bench.produce(b"a", b"b")
    bench.produce(b"c")
    bench.heard_error(KafkaError(KafkaError._FATAL, "out of order", fatal=True))
    bench.producer.serve()
    assert sorted(map(sorted, bench.calls)) == [[(b"a", False), (b"b", False)], [(b"c", False)]]
    bench.produce(b"d")
    bench.producer.flush(1)
    assert len(bench.clients) == 2
    assert len(bench.calls) == 3


def test_records_of_which_nothing_is_heard_any_more_are_given_back(bench: Bench) -> None:
    bench.clients[0].silent = True
    bench.produce(b"a", b"b")
    bench.producer.close(0)
    assert bench.calls == [[(b"a", False), (b"b", False)]]
    assert len(bench.producer) == 0


def test_an_error_of_the_client_that_is_not_fatal_changes_nothing(bench: Bench) -> None:
    bench.produce(b"a")
    bench.heard_error(KafkaError(KafkaError._ALL_BROKERS_DOWN))
    bench.producer.flush(1)
    assert (bench.calls, len(bench.clients)) == ([[]], 1)
