"""The client on a real broker: what it sends arrives, and what becomes of runs is told, with and without a database."""

from __future__ import annotations

import asyncio
import sys
import types
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from pages import blocks
from prometheus_client import CollectorRegistry
from servers import KafkaServer
from support import fresh_name, until

from ductor_stream import App, Client, Run, SyncClient, TerminalError
from ductor_stream.config import Settings
from ductor_stream.errors import (
    InvalidConfig,
    RunCancelled,
    RunExists,
    RunFailed,
    RunTerminated,
    RunTimedOut,
)
from ductor_stream.kafka.topics import create_topics
from ductor_stream.store.migrate import migrate
from ductor_stream.telemetry.metrics import Metrics
from ductor_stream.wiring.group import Group
from ductor_stream.wiring.serving import serving_services
from ductor_stream.wiring.topics import admin_config, planned

app = App("shop")


@dataclass
class Order:
    id: str
    items: list[str]


@app.step
async def charge(order: Order) -> str:
    if not order.items:
        raise TerminalError("nothing to pay for", type="EmptyOrder", details={"order": order.id})
    return f"receipt of {order.id}"


approved = app.signal("approved", bool)


@app.workflow
async def fulfil(run: Run, order: Order) -> str:
    return await run.step(charge, order)


@app.workflow
async def wait(run: Run) -> bool:
    return await run.wait_signal(approved)


@app.workflow(timeout=0.5)
async def give_up(run: Run) -> bool:
    return await run.wait_signal(approved)


note = app.signal("note", int)


@app.workflow
async def collect(run: Run, count: int) -> list[int]:
    return [await run.wait_signal(note) for _ in range(count)]


def settings_for(bootstrap: str, database_url: str | None = None) -> Settings:
    return Settings(kafka_bootstrap=bootstrap, namespace=fresh_name("shop"), partitions=4, database_url=database_url)


@pytest.fixture(scope="module")
def everything(kafka: KafkaServer, module_database: str) -> Iterator[Settings]:
    """A coordinator and a worker of the app, running in this process."""
    settings = settings_for(kafka.bootstrap, module_database)
    create_topics(admin_config(app, settings), planned(app, settings))
    migrate(module_database)
    registry = CollectorRegistry()
    group = Group(serving_services(app, settings, Metrics(registry, app="shop"), ["default"], 8))
    group.start()
    try:
        until(lambda: group.ready() == [], within_ms=30_000)
        yield settings
    finally:
        group.stop()


@pytest.fixture(scope="module")
def module_database(request: pytest.FixtureRequest) -> Iterator[str]:
    from servers import fresh_database

    with fresh_database(request.getfixturevalue("postgres").url) as url:
        yield url


@pytest.fixture(params=["database", "lifecycle"])
def settings(everything: Settings, request: pytest.FixtureRequest) -> Settings:
    """With a database, and with Kafka alone."""
    if request.param == "database":
        return everything
    return Settings(kafka_bootstrap=everything.kafka_bootstrap, namespace=everything.namespace)


def test_results_of_many_runs(settings: Settings) -> None:
    async def scene() -> list[str]:
        async with Client(app, settings) as client:
            handles = [await client.start(fulfil, Order(f"order-{n}", ["x"])) for n in range(50)]
            return await asyncio.gather(*(handle.result(timeout=60) for handle in handles))

    assert asyncio.run(scene()) == [f"receipt of order-{n}" for n in range(50)]


def test_signal_with_start(settings: Settings) -> None:
    """Whoever has something to say starts the run, or finds it: one run, and nothing that is said is lost or doubled."""
    run_id = fresh_name("desk")

    async def say(client: Client, number: int) -> list[int]:
        if number % 2:
            await client.handle(run_id).signal(note, number, signal_id=str(number))  # before its start: it waits
        handle = await client.start(collect, 15, run_id=run_id)
        await handle.signal(note, number, signal_id=str(number))
        return await handle.result(timeout=60)

    async def scene() -> list[list[int]]:
        async with Client(app, settings) as one, Client(app, settings) as other:
            return await asyncio.gather(*(say((one, other)[number % 2], number) for number in range(15)))

    first, *others = asyncio.run(scene())
    assert sorted(first) == list(range(15))
    assert others == [first] * 14


def test_the_page_about_clients(settings: Settings, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    shop = types.ModuleType("shop")
    shop.__dict__.update(Order=Order, app=app, approved=approved, ask=wait, fulfil=fulfil)
    monkeypatch.setitem(sys.modules, "shop", shop)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DUCTOR_KAFKA_BOOTSTRAP", settings.need_kafka())
    monkeypatch.setenv("DUCTOR_NAMESPACE", settings.namespace or "")
    monkeypatch.setenv("DUCTOR_DATABASE_URL", settings.database_url or "")
    programs = blocks("docs/clients.md", "python")
    assert len(programs) == 3
    text = "\n".join(programs)
    for run in ("41", "42", "question-7"):
        text = text.replace(run, f"{run}-{settings.has_database}")
    exec(text, {"__name__": "page"})  # noqa: S102 - that is the test


def test_signals_commands_and_errors(settings: Settings) -> None:
    with SyncClient(app, settings) as client:
        waiting = client.start(wait)
        waiting.signal(approved, True)
        assert waiting.result(timeout=30) is True

        failing = client.start(fulfil, Order("order-42", []))
        with pytest.raises(RunFailed, match="EmptyOrder: nothing to pay for") as caught:
            failing.result(timeout=30)
        assert (caught.value.error_type, caught.value.details) == ("EmptyOrder", {"order": "order-42"})

        cancelled, terminated = client.start(wait), client.start(wait)
        cancelled.cancel("customer asked")
        terminated.terminate("enough")
        with pytest.raises(RunCancelled):
            cancelled.result(timeout=30)
        with pytest.raises(RunTerminated):
            terminated.result(timeout=30)

        with pytest.raises(RunTimedOut, match="did not end within its timeout") as late:
            client.start(give_up).result(timeout=30)
        assert late.value.error_type == "RunTimedOut"


def test_on_conflict(settings: Settings) -> None:
    with SyncClient(app, settings) as client:
        run_id = fresh_name("order")
        first = client.start(fulfil, Order("first", ["x"]), run_id=run_id)
        assert first.result(timeout=30) == "receipt of first"
        again = client.start(fulfil, Order("again", ["x"]), run_id=run_id)
        assert again.result(timeout=30) == "receipt of first"
        with pytest.raises(RunExists):
            client.start(fulfil, Order("no", ["x"]), run_id=run_id, on_conflict="reject").result(timeout=30)
        anew = client.start(fulfil, Order("anew", ["x"]), run_id=run_id, on_conflict="restart_if_closed")
        assert anew.result(timeout=30) == "receipt of anew"


def test_a_run_of_another_client(settings: Settings) -> None:
    run_id = fresh_name("order")
    with SyncClient(app, settings) as client:
        client.start(fulfil, Order("old", ["x"]), run_id=run_id).result(timeout=30)
    with SyncClient(app, settings) as client:
        handle = client.handle(run_id, fulfil)
        if settings.has_database:
            assert handle.result(timeout=30) == "receipt of old"
        else:
            with pytest.raises(InvalidConfig, match="set DUCTOR_DATABASE_URL"):
                handle.result(timeout=30)


def test_a_client_out_of_the_environment_names_things(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DUCTOR_KAFKA_BOOTSTRAP", settings.need_kafka())
    monkeypatch.setenv("DUCTOR_DATABASE_URL", settings.database_url or "")
    namespace = settings.namespace
    with SyncClient.from_env(namespace) as client:
        handle = client.start("fulfil", {"id": "order-42", "items": ["x"]})
        assert handle.result(timeout=30) == "receipt of order-42"
    with pytest.raises(InvalidConfig, match="which app"):
        Client.from_env()
