"""Connectors as they are declared: what is refused and why, and what a test puts in their place."""

from __future__ import annotations

import asyncio
import importlib.util
from dataclasses import dataclass
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException
from support import until

from ductor_stream import App, HttpRequest, KafkaRecord, Run, Secret, StepError, TerminalError
from ductor_stream.config import Settings
from ductor_stream.connectors.binding import runnable_steps
from ductor_stream.connectors.kafka import opener
from ductor_stream.errors import InvalidDefinition, UsageError
from ductor_stream.kafka.options import HeardProducer
from ductor_stream.testing import TestEnv


@dataclass
class Address:
    city: str


@dataclass
class Order:
    id: str
    address: Address
    token: str | None = None


URL = "https://api.example.com/orders"


def http(**how: Any) -> Any:
    request = {"method": "POST", "url": URL, **how}
    return App("t").http_step("call", HttpRequest(**request), input=Order, output=str)


def kafka(**how: Any) -> Any:
    record = {"topic": "orders", **how}
    return App("t").kafka_step("publish", KafkaRecord(**record), input=Order)


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"method": "post"}, "method is 'post'; it is one of GET, HEAD, POST"),
        ({"url": "ftp://x/y"}, "begins with http:// or https://"),
        ({"url": "https://{id}.example.com/x"}, "a host that has no fields in it"),
        ({"url": "https://api.example.com{id}/x"}, "fields may stand behind the host only"),
        ({"url": "{id}"}, "begins with http:// or https://"),
        ({"url": "https://user:pw@api.example.com/x"}, "a password is a Secret(…) in a header"),
        ({"url": URL + "/{name}"}, "{name} is no field of the input; there are {address.city}, {id}, {token}"),
        ({"url": URL + "/{address}"}, "{address} is no field of the input"),
        ({"url": URL + "/{id!r}"}, "is no field of the input"),
        ({"url": URL + "/{id"}, "is no template"),
        ({"headers": {"X-A": "{nobody}"}}, "header 'X-A': {nobody} is no field"),
        ({"headers": {"Content-Length": "1"}}, "header 'Content-Length' cannot be set"),
        ({"headers": {"A B": "1"}}, "header 'A B' cannot be set"),
        ({"headers": {"X-A": "a\nb"}}, "visible ASCII"),
        ({"headers": {"X-A": Secret("no such name")}}, "a secret's name is that of an environment variable"),
        ({"headers": {"X-A": Secret("TOKEN", "Bearer")}}, "one {} for its value"),
        ({"headers": {"X-A": Secret("TOKEN", "Bearer {} ")}}, "format begins or ends with white space, 'Bearer {} '"),
        ({"headers": {"X-A": Secret("TOKEN", "\t{}")}}, "format begins or ends with white space"),
        ({"body": "amount"}, "body is 'amount', which is no field of the input; there are id, address, token"),
        ({"retry_on": {200}}, "statuses from 300 to 599"),
        ({"max_response_bytes": 10_000_000}, "has at most 900,000"),
        ({"idempotency_header": "a:b"}, "header 'a:b' cannot be set"),
    ],
)
def test_a_request_that_cannot_work_is_refused(how: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidDefinition) as caught:
        http(**how)
    assert said in str(caught.value)
    assert f"{__file__}:" in str(caught.value)
    assert "HTTP step 'call': " in str(caught.value)


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"topic": "a b"}, "topic is 'a b'; use 1 to 249 characters"),
        ({"topic": ".."}, "topic is '..'"),
        ({"topic": "ductor.other.run-events"}, "those of the engine are not published to"),
        ({"key": "{nobody}"}, "key: {nobody} is no field of the input"),
        ({"headers": {"h": "{address}"}}, "header 'h': {address} is no field of the input"),
        ({"value": "amount"}, "value is 'amount', which is no field of the input"),
    ],
)
def test_a_record_that_cannot_work_is_refused(how: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidDefinition) as caught:
        kafka(**how)
    assert said in str(caught.value)
    assert "Kafka step 'publish': " in str(caught.value)


def test_topics_of_the_engine_are_refused_whatever_they_are_called_here() -> None:
    app = App("t")
    app.kafka_step("publish", KafkaRecord(topic="acme.other.run-events"), input=Order)
    assert "publish" in runnable_steps(app, Settings())
    with pytest.raises(InvalidDefinition, match=r"begins with 'acme\.', as the engine's own do"):
        runnable_steps(app, Settings(topic_prefix="acme."))
    with pytest.raises(InvalidDefinition, match=r"begins with 'acme\.'"):
        runnable_steps(app, Settings(topic_prefix="", namespace="acme"))


def test_without_the_extra_the_declaration_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(InvalidDefinition, match=r"pip install 'ductor-stream\[connectors\]'"):
        http()


def test_a_worker_takes_their_queues() -> None:
    app = App("t")
    app.http_step("call", HttpRequest(method="GET", url=URL), queue="web", timeout=5)
    app.kafka_step("publish", KafkaRecord(topic="orders"), input=Order)
    app.external_step("ship", queue="shipping", output=str)
    assert app.queues(external=False) == ("default", "web")
    options = app.steps["call"].definition.options
    assert (options.start_to_close_ms, app.steps["publish"].definition.options.start_to_close_ms) == (5_000, 60_000)


def test_in_a_test_they_are_replaced_and_reach_nothing_otherwise() -> None:
    app = App("t")
    call = app.http_step("call", HttpRequest(method="POST", url=URL), input=Order, output=str)
    publish = app.kafka_step("publish", KafkaRecord(topic="orders"), input=Order)

    @app.workflow
    async def sell(run: Run, order: Order) -> str:
        try:
            told = await run.step(call, order)
        except StepError as error:
            return error.type
        await run.step(publish, order)
        return told

    seen: list[Order] = []

    def gone(order: Order) -> str:
        raise TerminalError("gone", type="HTTP410")

    async def check() -> None:
        order = Order("7", Address("Bern"))
        async with TestEnv(app) as env:
            with pytest.raises(UsageError, match="'call' is a connector, and tests reach nothing outside"):
                await env.start(sell, order)
        async with TestEnv(app) as env:
            env.replace(call, lambda order: f"sold {order.id}")
            env.replace(publish, seen.append)
            assert await (await env.start(sell, order)).result() == "sold 7"
            env.replace(call, gone)
            assert await (await env.start(sell, order)).result() == "HTTP410"
        assert seen == [order]

    asyncio.run(check())


def test_a_fatal_error_of_the_producer_is_heard_so_that_another_takes_its_place() -> None:
    """The driver raises it out of a poll: unheard, what the producer holds would wait for ever."""
    fatal = KafkaError(KafkaError.CLUSTER_AUTHORIZATION_FAILED, "no", fatal=True)

    async def replaced() -> None:
        opened = opener(Settings(kafka_bootstrap="127.0.0.1:1", kafka={"log_level": "0"}))()
        producer = await anext(opened)
        first, raised = producer._client, [KafkaException(fatal)]

        def poll() -> int:
            if raised:
                raise raised.pop()
            return 0

        assert isinstance(first, HeardProducer)
        first._heard(poll)
        until(lambda: producer._client is not first, what="another producer")
        assert await anext(opened, None) is None, "it is closed"

    asyncio.run(replaced())
