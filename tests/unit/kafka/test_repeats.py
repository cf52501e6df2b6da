"""While no broker can be reached, all clients say the same many times a second: once is enough."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from ductor_stream.kafka.repeats import SAID_AGAIN_S, Repeats


@pytest.fixture
def times() -> list[float]:
    return [0.0]


@pytest.fixture
def logger(times: list[float]) -> Iterator[logging.Logger]:
    made = logging.getLogger("test_repeats")
    repeats = Repeats(lambda: times[0])
    made.addFilter(repeats)
    yield made
    made.removeFilter(repeats)


def test_a_line_is_said_once_whichever_client_says_it(logger: logging.Logger, caplog: pytest.LogCaptureFixture) -> None:
    for number in range(50):
        head = f"FAIL [rdkafka#consumer-{number}] [thrd:127.0.0.1:27850/bootstrap]: 127.0.0.1:27850/{number}: "
        logger.error("%s", head + "Connect to ipv4#127.0.0.1:27850 failed: Connection refused (after 3ms in state UP)")
    assert len(caplog.records) == 1


def test_the_same_is_said_again_after_a_while_with_its_count(
    logger: logging.Logger, times: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(3):
        logger.warning("consumer: 1/1 brokers are down")
    logger.warning("producer: 1/1 brokers are down")
    times[0] = SAID_AGAIN_S
    logger.warning("producer: 1/1 brokers are down")
    assert [record.getMessage() for record in caplog.records] == [
        "consumer: 1/1 brokers are down",
        "producer: 1/1 brokers are down (and 3 more like it)",
    ]


def test_other_lines_and_other_brokers_are_told_apart(logger: logging.Logger, caplog: pytest.LogCaptureFixture) -> None:
    for address in ("a:9092", "b:9092"):
        logger.error("FAIL [rdkafka#producer-1]: Connect to %s failed: Connection refused", address)
    logger.error("fatal consumer error")
    assert len(caplog.records) == 3
