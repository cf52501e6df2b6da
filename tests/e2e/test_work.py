"""A rule, an HTTP request and a Kafka record, through real processes, whose worker is killed -9 midway."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from fleet import Fleet, fleet_of, module
from http_server import Answer, HttpServer, http_server
from rig import Rig
from support import fresh_name, until

from ductor_stream.kafka.topics import create_topics, plan

SECRET = "token-that-nobody-may-see"
RUNS = [f"order-{n}" for n in range(20)]

SHOP = """
from dataclasses import dataclass
from ductor_stream import App, HttpRequest, KafkaRecord, Retry, Row, Run, Secret

app = App("shop")

@dataclass
class Order:
    id: str
    total: float

@dataclass
class Sale:
    id: str
    rate: float

@dataclass
class Receipt:
    number: str

rate = app.decision_table("rate", version="3", hit="first", input=Order, output=float, rows=[
    Row("large", {"amount": "total > 100.0"}, "0.1"),
    Row("rest", default=True, then="0.0"),
])
charge = app.http_step(
    "charge",
    HttpRequest(method="POST", url="URL/charges/{id}", headers={"Authorization": Secret("SHOP_TOKEN", "Bearer {}")}),
    input=Sale, output=Receipt, queue="web", retry=Retry(max_attempts=5, initial=0.1),
)
publish = app.kafka_step("publish", KafkaRecord(topic="TOPIC", key="{id}"), input=Sale)

@app.workflow
async def sell(run: Run, order: Order) -> str:
    sale = Sale(order.id, await run.step(rate, order))
    receipt = await run.step(charge, sale)
    await run.step(publish, sale)
    return receipt.number
"""


@pytest.fixture
def server() -> Iterator[HttpServer]:
    with http_server() as made:
        yield made


@pytest.fixture
def topic(rig: Rig) -> Iterator[str]:
    name, admin = fresh_name("sales"), AdminClient({"bootstrap.servers": rig.bootstrap})
    admin.create_topics([NewTopic(name, 2, 1)])[name].result(30)
    yield name
    admin.delete_topics([name])[name].result(30)


def start(rig: Rig, *run_ids: str) -> None:
    for run_id in run_ids:
        rig.start(run_id, workflow="sell", input={"id": run_id, "total": 100.0 + RUNS.index(run_id)})


def everywhere(rig: Rig, fleet: Fleet, topic: str) -> str:
    """All that Kafka, Postgres and the logs have of this namespace."""
    found = [member.log for member in fleet.members]
    for name in [topic, *(each.name for each in rig.plans)]:
        for message in rig.read(name):
            found += [repr(message.value()), repr(message.headers())]
    tables = rig.rows("select table_name from information_schema.tables where table_name like 'eec\\_%%'")
    for table in tables:
        found += [str(row["t"]) for row in rig.rows(f"select t::text from {table['table_name']} t")]
    return "\n".join(found)


def test_a_rule_a_request_and_a_record_whose_worker_is_killed(
    rig: Rig, server: HttpServer, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHOP_TOKEN", SECRET)
    folder = module(rig, "work", SHOP.replace("URL", server.url).replace("TOPIC", topic))
    later = Answer(503, b"busy with " + SECRET.encode(), {"Retry-After": "1"})
    server.answer(Answer(hangs=True), later, Answer(200, b'{"number": "r-1"}'))
    with fleet_of(rig) as fleet:
        _create_topics(rig)
        fleet.start("coordinator", folder=folder)
        worker = fleet.start("worker", folder=folder)
        fleet.until_ready()
        start(rig, RUNS[0])
        until(lambda: len(server.asked) == 1, within_ms=60_000, what="a request under way")
        worker.kill()
        fleet.start("worker", folder=folder)
        start(rig, *RUNS[1:])
        rig.until_status("completed", *RUNS, within_ms=90_000)

        keys = Counter(asked.headers["Idempotency-Key"] for asked in server.asked)
        node = next(node["node_id"] for node in fleet.show(RUNS[0])["nodes"] if node["name"] == "charge")
        assert set(keys) == {f"{rig.namespace}/{run_id}/1/{node}" for run_id in RUNS}
        assert keys[f"{rig.namespace}/{RUNS[0]}/1/{node}"] >= 2  # the worker that was killed had sent it
        assert sum(keys.values()) >= len(RUNS) + 2  # and one was answered by 503
        assert {asked.headers["Authorization"] for asked in server.asked} == {f"Bearer {SECRET}"}

        records = rig.read(topic)
        published = {dict(message.headers())["idempotency-key"].decode() for message in records}
        assert len(published) == len(RUNS)
        assert {message.key().decode(): json.loads(message.value())["rate"] for message in records} == {
            run_id: 0.1 if n > 0 else 0.0 for n, run_id in enumerate(RUNS)
        }

        shown = fleet.show(RUNS[5])
        [decided] = [node for node in shown["nodes"] if node["name"] == "rate"]
        assert decided["facts"] == {"id": RUNS[5], "total": 105.0}
        assert decided["verdict"]["why"] == "rate version 3: row large hit (amount: total > 100.0)"
        assert shown["result"] == "r-1"

        seen = everywhere(rig, fleet, topic)
        assert SECRET not in seen
        assert SECRET.encode().hex() not in seen
        rig.check()


def test_serve_runs_them_in_its_own_process(
    rig: Rig, server: HttpServer, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHOP_TOKEN", SECRET)
    server.answer(Answer(200, b'{"number": "r-1"}'))
    folder = module(rig, "work", SHOP.replace("URL", server.url).replace("TOPIC", topic))
    with fleet_of(rig) as fleet:
        _create_topics(rig)
        fleet.start("serve", folder=folder)
        fleet.until_ready()
        start(rig, *RUNS)
        rig.until_status("completed", *RUNS, within_ms=60_000)
        assert Counter(message.key().decode() for message in rig.read(topic)) == Counter(RUNS)
        assert Counter(asked.json["id"] for asked in server.asked) == Counter(RUNS)
        rig.check()


def _create_topics(rig: Rig) -> None:
    """The rig knows the queue ``default`` alone."""
    rig.plans = plan(rig.topics, ["default", "web"], partitions=rig.partitions)
    create_topics(rig.admin, rig.plans)
