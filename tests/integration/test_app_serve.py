"""``await app.serve()``: coordinator and worker beside somebody's own event loop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import threading
from typing import Any

import pytest
import structlog
from servers import KafkaServer
from support import fresh_name

from ductor_stream import App, Client, Run
from ductor_stream.config import Settings
from ductor_stream.errors import InvalidConfig
from ductor_stream.kafka.topics import create_topics
from ductor_stream.store.migrate import migrate
from ductor_stream.wiring import clients, embedded
from ductor_stream.wiring.topics import admin_config, planned

part = App("part")
app = App("shop")


@part.step
async def double(number: int) -> int:
    return 2 * number


@app.workflow
async def twice(run: Run, number: int) -> int:
    return await run.step(double, await run.step(double, number))


app.include(part)


def test_runs_complete_until_it_is_cancelled(kafka: KafkaServer, database_url: str) -> None:
    settings = Settings(
        kafka_bootstrap=kafka.bootstrap, database_url=database_url, namespace=fresh_name("shop"), partitions=2
    )
    create_topics(admin_config(app, settings), planned(app, settings))
    migrate(database_url)

    def of_the_process() -> object:
        """What belongs to the program that calls us: its log, and how it is ended."""
        root = logging.getLogger()
        ours = {name: each for name, each in root.manager.loggerDict.items() if name.startswith("ductor_stream")}
        touched = [
            name for name, each in ours.items() if isinstance(each, logging.Logger) and (each.handlers or each.level)
        ]
        handled = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
        return list(root.handlers), root.level, list(root.filters), touched, structlog.get_config(), handled

    async def scene() -> int:
        before = of_the_process()
        serving = asyncio.create_task(app.serve(settings, concurrency=4))
        async with Client(app, settings) as client:
            handle = await client.start(twice, 3)
            result = await handle.result(timeout=60)
            assert of_the_process() == before, "while it serves"
        serving.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await serving
        assert of_the_process() == before
        return result

    assert asyncio.run(scene()) == 12


def test_cancelled_while_it_opens_it_leaves_nothing_open(
    kafka: KafkaServer, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A time-out around it, or a program that ends at once: what a thread opens meanwhile is closed all the same."""
    settings = Settings(
        kafka_bootstrap=kafka.bootstrap, database_url=database_url, namespace=fresh_name("shop"), partitions=2
    )
    create_topics(admin_config(app, settings), planned(app, settings))
    migrate(database_url)
    before = set(threading.enumerate())

    def slowly(module: Any, name: str) -> threading.Event:
        make, called = getattr(module, name), threading.Event()

        def made(*given: Any) -> Any:
            called.set()
            threading.Event().wait(0.2)
            return make(*given)

        monkeypatch.setattr(module, name, made)
        return called

    serving, opening = slowly(embedded, "serving_services"), slowly(clients, "open_core")

    async def scene() -> None:
        for begun, what in ((serving, app.serve(settings)), (opening, Client(app, settings).open())):
            task = asyncio.ensure_future(what)
            while not begun.is_set():
                await asyncio.sleep(0.001)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    asyncio.run(scene())
    assert serving.is_set() and opening.is_set()
    left = {thread.name for thread in set(threading.enumerate()) - before if thread.is_alive()}
    assert not {name for name in left if name.startswith(("ductor-", "kafka-"))} - {"kafka-group-offsets"}


def test_what_is_missing_is_told() -> None:
    with pytest.raises(InvalidConfig, match="where is Postgres"):
        asyncio.run(app.serve(Settings(kafka_bootstrap="127.0.0.1:1")))
