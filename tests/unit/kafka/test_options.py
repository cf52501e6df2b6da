"""What of the user's options reaches which client."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer

from ductor_stream.errors import InvalidConfig
from ductor_stream.kafka.options import OWNED, HeardProducer, check_options, client_options, open_client


@pytest.mark.parametrize("name", sorted(OWNED))
def test_owned_options_are_refused_with_the_reason(name: str) -> None:
    with pytest.raises(InvalidConfig) as refused:
        client_options("producer", "127.0.0.1:1", {name: "1"})
    assert name in str(refused.value)
    assert OWNED[name] in str(refused.value)


def test_callbacks_are_refused() -> None:
    with pytest.raises(InvalidConfig, match="error_cb"):
        check_options({"error_cb": print})


@pytest.mark.parametrize(
    ("named", "told"),
    [
        ("kafka_token", "module:function"),
        ("no_such_module:f", "No module named 'no_such_module'"),
        ("json:no_such", "no attribute"),
        ("sys:path", "is no function"),
    ],
)
def test_a_token_function_that_cannot_be_found_is_refused(named: str, told: str) -> None:
    with pytest.raises(InvalidConfig, match=f"oauth_cb.*{told}"):
        client_options("admin", "b:1", {"oauth_cb": named})


def test_a_token_function_is_found_by_its_name_for_every_kind_of_client() -> None:
    for kind in ("consumer", "producer", "admin"):
        assert client_options(kind, "b:1", {"oauth_cb": "json:loads"})["oauth_cb"]("[1]") == [1]


def test_rules_hold_whatever_is_set() -> None:
    consumer = client_options("consumer", "b:1", {"fetch.min.bytes": 7})
    producer = client_options("producer", "b:1", {"linger.ms": 3})
    assert consumer["isolation.level"] == "read_committed"
    assert (consumer["enable.auto.commit"], consumer["enable.auto.offset.store"]) == (False, False)
    assert consumer["auto.offset.reset"] == "error"
    assert (producer["acks"], producer["enable.idempotence"]) == ("all", True)
    assert producer["partitioner"] == "murmur2_random"


@pytest.mark.parametrize(
    ("given", "session"),
    [
        ({"max.poll.interval.ms": 6_000}, 6_000),
        ({"max.poll.interval.ms": "6000"}, 6_000),
        ({"max.poll.interval.ms": 300_000}, 45_000),
        ({"max.poll.interval.ms": 60_000, "session.timeout.ms": 50_000}, 50_000),
        ({}, None),
    ],
)
def test_who_sets_how_long_a_poll_may_take_need_not_think_of_the_session(given: dict[str, Any], session: Any) -> None:
    made = client_options("consumer", "127.0.0.1:1", given, group_id="g")
    assert made.get("session.timeout.ms") == session
    open_client(Consumer, made).close()
    by_new = client_options("consumer", "127.0.0.1:1", given, group_id="g", group_protocol="consumer")
    assert by_new.get("session.timeout.ms") == given.get("session.timeout.ms"), "there it is the broker's"


def test_options_go_to_the_clients_that_know_them() -> None:
    user = {"fetch.min.bytes": 7, "compression.type": "lz4", "security.protocol": "SSL"}
    kinds = {kind: client_options(kind, "b:1", user) for kind in ("consumer", "producer", "admin")}
    assert [kind for kind in kinds if "fetch.min.bytes" in kinds[kind]] == ["consumer"]
    assert [kind for kind in kinds if "compression.type" in kinds[kind]] == ["producer"]
    assert [kind for kind in kinds if kinds[kind].get("security.protocol") == "SSL"] == [
        "consumer",
        "producer",
        "admin",
    ]


def test_the_user_s_value_wins_over_our_default_under_any_spelling() -> None:
    assert client_options("producer", "b:1", {})["linger.ms"] == 0
    options = client_options("producer", "b:1", {"queue.buffering.max.ms": 9, "delivery.timeout.ms": 5000})
    assert (options["linger.ms"], options["message.timeout.ms"]) == (9, 5000)
    assert "queue.buffering.max.ms" not in options


def test_an_unknown_option_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(InvalidConfig, match=r"fetch\.mim\.bytes.*did you mean 'fetch\.min\.bytes'"):
        open_client(Consumer, client_options("consumer", "127.0.0.1:1", {"fetch.mim.bytes": 1}, group_id="g"))


def test_a_bad_value_is_refused() -> None:
    with pytest.raises(InvalidConfig, match=r"compression\.(codec|type)"):
        open_client(Producer, client_options("producer", "127.0.0.1:1", {"compression.type": "brotli"}))


def test_client_logs_go_to_the_logger_and_not_to_stderr(
    capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    options = client_options("producer", "127.0.0.1:1", {"debug": "generic"}) | {"error_cb": lambda error: None}
    client = open_client(Producer, options)
    caplog.set_level("DEBUG", "ductor_stream.kafka.client")
    client.poll(0.2)
    client.flush(0.2)
    assert [each for each in caplog.records if each.name == "ductor_stream.kafka.client"]
    assert capfd.readouterr().err == ""


def test_what_the_driver_raises_as_fatal_is_told_and_the_call_goes_on() -> None:
    told: list[KafkaError] = []
    producer = HeardProducer({"bootstrap.servers": "127.0.0.1:1", "error_cb": told.append, "log_level": 0})
    fatal, passing = (KafkaError(KafkaError.CLUSTER_AUTHORIZATION_FAILED, "no", fatal=each) for each in (True, False))
    raised = [KafkaException(fatal)]

    def call() -> int:
        if raised:
            raise raised.pop()
        return 3

    assert producer._heard(call) == 3 and told == [fatal]
    raised.append(KafkaException(passing))
    with pytest.raises(KafkaException):
        producer._heard(call)
    assert told == [fatal] and producer.flush(0) == producer.poll(0) == 0
