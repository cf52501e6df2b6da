"""``await app.serve()``: coordinator and worker beside somebody's own event loop."""

from __future__ import annotations

import asyncio
import contextlib

import pytest
from servers import KafkaServer
from support import fresh_name

from ductor_stream import App, Client, Run
from ductor_stream.config import Settings
from ductor_stream.errors import InvalidConfig
from ductor_stream.kafka.topics import create_topics
from ductor_stream.store.migrate import migrate
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

    async def scene() -> int:
        serving = asyncio.create_task(app.serve(settings, concurrency=4))
        async with Client(app, settings) as client:
            handle = await client.start(twice, 3)
            result = await handle.result(timeout=60)
        serving.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await serving
        return result

    assert asyncio.run(scene()) == 12


def test_what_is_missing_is_told() -> None:
    with pytest.raises(InvalidConfig, match="where is Postgres"):
        asyncio.run(app.serve(Settings(kafka_bootstrap="127.0.0.1:1")))
