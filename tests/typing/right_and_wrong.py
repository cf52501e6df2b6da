"""Calls that a type checker must accept, and calls that it must refuse: those lines end in ``# wrong``.

Never run; ``tests/unit/test_typing.py`` gives it to mypy and pyright. ``assert_type`` says what a checker must know.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, assert_type

from ductor_stream import (
    App,
    Client,
    HttpRequest,
    KafkaRecord,
    Resource,
    Retry,
    Row,
    Run,
    RunHandle,
    SyncClient,
    SyncRunHandle,
    Use,
    Verdict,
    Workflow,
)

app = App("shop")


@dataclass
class Order:
    id: str
    items: list[str]


class Pool:
    """A connection pool."""


@app.resource
async def db() -> AsyncIterator[Pool]:
    yield Pool()


assert_type(db, Resource[Pool])


@app.step(queue="payments", timeout=30, retry=Retry(max_attempts=5))
async def charge(order: Order, note: str = "", *, times: int = 1, db: Pool = Use(db)) -> str:
    return order.id


@app.step
def reserve(sku: str) -> int:
    return len(sku)


@app.step()
async def nothing() -> None: ...


ship = app.external_step("ship", queue="shipping", input=Order, output=str)
ping = app.external_step("ping", output=bool)
rate = app.decision_table("rate", rows=[Row("all", then="0.1")], input=Order, output=float)
rates = app.decision_table("rates", rows=[Row("all", then="0.1")], input=Order, output=float, hit="collect")
large = app.expression("large", "size(items) > 3", input=Order, output=bool, version="2", queue="rules")
call = app.http_step("call", HttpRequest(method="POST", url="https://x.example/y"), input=Order, output=str)
tell = app.http_step("tell", HttpRequest(method="POST", url="https://x.example/y"), input=Order, timeout=5)
look = app.http_step("look", HttpRequest(method="GET", url="https://x.example/y"), output=str)
publish = app.kafka_step("publish", KafkaRecord(topic="orders"), input=Order)
approved = app.signal("approved", bool)
names = app.signal("names", list[str])


@app.workflow(version="1", timeout=60)
async def fulfil(run: Run, order: Order) -> str:
    assert_type(await run.step(charge, order), str)
    assert_type(await run.step(charge, order, "note", times=3), str)
    assert_type(await run.step(charge, order=order), str)
    assert_type(await run.step(charge.options(retry=Retry(max_attempts=1), queue="vip"), order), str)
    assert_type(await run.step(reserve, "sku"), int)
    assert_type(await run.step(nothing), None)
    assert_type(await run.step(ship, order), str)
    assert_type(await run.step(ping), bool)
    assert_type(await run.wait_signal(approved), bool)
    assert_type(await run.wait_signal(names), list[str])
    assert_type(await asyncio.gather(*(run.step(reserve, sku) for sku in order.items)), list[int])
    assert_type(await asyncio.gather(run.step(reserve, "a"), run.step(charge, order)), tuple[int, str])
    async with asyncio.TaskGroup() as group:
        task = group.create_task(run.step(reserve, "a"))
    assert_type(task.result(), int)

    assert_type(await run.step(rate, order), float)
    assert_type(await run.step(rates, order), list[float])
    assert_type(await run.step(large.options(timeout=1), order), bool)
    assert_type(await run.step(call, order), str)
    assert_type(await run.step(tell, order), None)
    assert_type(await run.step(look), str)
    assert_type(await run.step(publish, order), None)

    await run.step(rate, 7)  # wrong
    await run.step(large)  # wrong
    await run.step(call, "order-1")  # wrong
    await run.step(look, order)  # wrong
    await run.step(publish, 7)  # wrong
    await run.step(charge, 7)  # wrong
    await run.step(charge)  # wrong
    await run.step(charge, order, times="3")  # wrong
    await run.step(charge, order, tmies=3)  # wrong
    await run.step(reserve, "a", "b")  # wrong
    await run.step(ship, "order-1")  # wrong
    await run.step(ping, 1)  # wrong
    await run.step(len, "a")  # wrong
    await run.wait_signal("approved")  # wrong
    run.step(reserve, "a")  # wrong
    charge.options(tmeout=3)  # wrong
    charge.options(timeout="3")  # wrong
    number: int = await run.step(charge, order)  # wrong
    return str(number)


assert_type(fulfil, Workflow[Order, str])


@app.workflow
async def sweep(run: Run) -> int:
    return 1


assert_type(sweep, Workflow[None, int])


@app.workflow  # wrong
def no_coroutine(run: Run) -> int:
    return 1


@app.step(tmeout=3)  # wrong
def misspelt() -> None: ...


async def outside(order: Order) -> None:
    assert_type(rate(order), float)
    assert_type(rate.decide(order), Verdict[float])
    assert_type(await charge(order), str)
    assert_type(reserve("a"), int)
    reserve(1)  # wrong
    async with Client(app) as client:
        handle = await client.start(fulfil, order, run_id="order-42", on_conflict="reject")
        assert_type(handle, RunHandle[str])
        assert_type(await handle.result(timeout=60), str)
        assert_type(await client.start(sweep), RunHandle[int])
        assert_type(await client.start("fulfil", order), RunHandle[Any])
        assert_type(client.handle("order-42", fulfil), RunHandle[str])
        await handle.signal(approved, True)
        await handle.signal("approved", True)
        await handle.cancel("customer asked")
        await client.start(fulfil)  # wrong
        await client.start(fulfil, "order-42")  # wrong
        await client.start(fulfil, order, run_ids="order-42")  # wrong
        await client.start(fulfil, order, on_conflict="replace")  # wrong
        await handle.signal(approved, "yes")  # wrong
    with SyncClient(app) as plain:
        started = plain.start(fulfil, order)
        assert_type(started, SyncRunHandle[str])
        assert_type(started.result(), str)
        started.signal(approved, True)
