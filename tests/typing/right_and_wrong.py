"""Calls that a type checker must accept, and calls that it must refuse: those lines end in ``# wrong`` and what both say.

Never run; ``tests/unit/test_typing.py`` gives it to mypy and pyright. ``assert_type`` says what a checker must know.
Before the slash stand mypy's words, behind it pyright's without their "report".
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import datetime
from random import Random
from typing import Any, Literal, assert_type
from uuid import UUID

from ductor_stream import (
    App,
    Client,
    HttpRequest,
    KafkaRecord,
    Resource,
    Retry,
    Row,
    Run,
    RunDescription,
    RunHandle,
    StepError,
    SyncClient,
    SyncRunHandle,
    Use,
    Verdict,
    Workflow,
    current_attempt,
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


@app.step
def pair(first: str, second: str) -> int:
    return len(first + second)


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

    await run.step(rate, 7)  # wrong: arg-type / ArgumentType
    await run.step(large)  # wrong: call-arg / CallIssue
    await run.step(call, "order-1")  # wrong: arg-type / ArgumentType
    await run.step(look, order)  # wrong: call-arg / CallIssue
    await run.step(publish, 7)  # wrong: arg-type / ArgumentType
    await run.step(charge, 7)  # wrong: arg-type / ArgumentType
    await run.step(charge)  # wrong: call-arg / CallIssue
    await run.step(charge, order, times="3")  # wrong: arg-type / ArgumentType
    await run.step(charge, order, tmies=3)  # wrong: call-arg / CallIssue
    await run.step(reserve, "a", "b")  # wrong: call-arg / CallIssue
    await run.step(ship, "order-1")  # wrong: arg-type / ArgumentType
    await run.step(ping, 1)  # wrong: call-arg / CallIssue
    await run.step(len, "a")  # wrong: arg-type / ArgumentType, CallIssue
    await run.wait_signal("approved")  # wrong: arg-type / ArgumentType
    run.step(reserve, "a")  # wrong: unused-coroutine / UnusedCoroutine
    charge.options(tmeout=3)  # wrong: call-arg / CallIssue
    charge.options(timeout="3")  # wrong: arg-type / ArgumentType
    number: int = await run.step(charge, order)  # wrong: arg-type / AssignmentType
    return str(number)


assert_type(fulfil, Workflow[Order, str])


@app.workflow
async def sweep(run: Run) -> int:
    return 1


assert_type(sweep, Workflow[None, int])


@app.workflow
async def restock(run: Run, order: Order | None = None) -> int:
    assert_type(await run.child(restock), int)
    assert_type(await run.child(restock, order), int)
    return await run.child(restock, 7)  # wrong: misc / ArgumentType, CallIssue


@app.workflow(version="2")
async def restock_anew(run: Run, order: Order | None = None) -> int:
    return 2


assert_type(restock, Workflow[Order | None, int])
assert_type(restock_anew, Workflow[Order | None, int])


@app.workflow
async def family(run: Run, order: Order) -> None:
    assert_type(await run.child(fulfil, order), str)
    assert_type(await run.child(fulfil, input=order, run_id="child-1", parent_close="abandon"), str)
    assert_type(await run.child(fulfil, order, detach=False), str)
    assert_type(await run.child(sweep), int)
    assert_type(await run.child(sweep, None), int)
    assert_type(await run.child(sweep, run_id="loose", detach=True), str)
    assert_type(await run.child(fulfil, order, detach=True), str)
    loose = bool(order.items)
    assert_type(await run.child(sweep, detach=loose), int | str)
    assert_type(await run.child(fulfil, order, detach=loose), str)
    assert_type(await asyncio.gather(run.child(fulfil, order), run.child(sweep)), tuple[str, int])
    assert_type(await asyncio.gather(*(run.child(fulfil, each) for each in [order])), list[str])
    async with asyncio.TaskGroup() as group:
        task = group.create_task(run.child(sweep))
    assert_type(task.result(), int)

    await run.child(fulfil)  # wrong: arg-type / ArgumentType
    await run.child(fulfil, "order-1")  # wrong: misc / ArgumentType, CallIssue
    await run.child(fulfil, None)  # wrong: arg-type / ArgumentType, CallIssue
    await run.child(fulfil, detach=True)  # wrong: arg-type / ArgumentType, CallIssue
    await run.child(sweep, order)  # wrong: misc / ArgumentType, CallIssue
    await run.child(fulfil, order, run_ids="a")  # wrong: call-overload / CallIssue
    await run.child(fulfil, order, parent_close="kill")  # wrong: call-overload / ArgumentType, CallIssue
    await run.child(fulfil, order, detach="yes")  # wrong: call-overload / ArgumentType, CallIssue
    await run.child("fulfil", order)  # wrong: call-overload / ArgumentType, CallIssue
    run.child(fulfil, order)  # wrong: unused-coroutine / UnusedCoroutine
    _number: int = await run.child(fulfil, order)  # wrong: arg-type / AssignmentType


@app.workflow
async def fan_out(run: Run, order: Order) -> None:
    assert_type(await run.map(reserve, order.items), list[int])
    assert_type(await run.map(charge, [order], max_in_flight=10), list[str])
    assert_type(await run.map(charge.options(queue="vip"), (each for each in [order])), list[str])
    assert_type(await run.map(ship, {order.id: order}.values(), on_error="cancel"), list[str])
    assert_type(await run.map(rate, [order]), list[float])
    assert_type(await run.map(tell, [order]), list[None])
    found = await run.map(reserve, order.items, on_error="collect")
    assert_type(found, list[int | StepError])
    assert_type([each for each in found if not isinstance(each, StepError)], list[int])
    policy: Literal["cancel", "collect"] = "collect" if order.items else "cancel"
    assert_type(await run.map(reserve, order.items, on_error=policy), list[int | StepError])
    assert_type(await asyncio.gather(run.map(reserve, ["a"]), run.step(reserve, "b")), tuple[list[int], int])

    await run.map(reserve, [order])  # wrong: misc / ArgumentType
    await run.map(charge, order.items)  # wrong: misc / ArgumentType
    await run.map(nothing, order.items)  # wrong: arg-type / ArgumentType
    await run.map(pair, order.items)  # wrong: arg-type / ArgumentType
    await run.map(len, order.items)  # wrong: call-overload / ArgumentType
    await run.map(reserve, 7)  # wrong: call-overload / ArgumentType
    await run.map(reserve, order.items, on_error="ignore")  # wrong: call-overload / ArgumentType, CallIssue
    await run.map(reserve, order.items, max_in_flight="3")  # wrong: call-overload / ArgumentType
    await run.map(reserve, order.items, in_flight=3)  # wrong: call-overload / CallIssue
    run.map(reserve, order.items)  # wrong: unused-coroutine / UnusedCoroutine
    _texts: list[str] = await run.map(reserve, order.items)  # wrong: arg-type / AssignmentType


@app.workflow
async def the_rest(run: Run, order: Order) -> bool:
    async for given in run.signals(approved):
        assert_type(given, bool)
        break
    assert_type(await anext(run.signals(names)), list[str])
    assert_type(run.now(), datetime)
    assert_type(run.uuid4(), UUID)
    assert_type(run.random, Random)
    assert_type(run.random.randint(1, 6), int)
    assert_type((run.info.run_id, run.info.execution, run.info.workflow, run.info.version), tuple[str, int, str, str])
    assert_type(run.info.started_at, int)
    assert_type(run.patched("other-bank"), bool)
    assert_type(run.should_continue(), bool)
    run.set_view({"packed": len(order.items)})
    run.log.info("packed", items=len(order.items))

    run.signals("approved")  # wrong: arg-type / ArgumentType
    run.now(1)  # wrong: call-arg / CallIssue
    run.uuid4(1)  # wrong: call-arg / CallIssue
    run.random()  # wrong: operator / CallIssue
    assert run.info.runid  # wrong: attr-defined / AttributeAccessIssue
    run.info.execution = 2  # wrong: misc / AttributeAccessIssue
    run.patched()  # wrong: call-arg / CallIssue
    run.patched(1)  # wrong: arg-type / ArgumentType
    run.should_continue(1000)  # wrong: call-arg / CallIssue
    run.set_view()  # wrong: call-arg / CallIssue
    run.log.info(7)  # wrong: arg-type / ArgumentType
    if run.patched("versions"):
        run.continue_as_new(order, version=2)  # wrong: arg-type / ArgumentType
    if run.patched("keywords"):
        run.continue_as_new(order, versions="2")  # wrong: call-arg / CallIssue
    if run.should_continue():
        run.continue_as_new(order, version="2")
    if order.items:
        run.continue_as_new()
    return False


@app.step
async def looking() -> int:
    attempt = current_attempt()
    assert_type((attempt.run_id, attempt.node_id, attempt.idempotency_key), tuple[str, str, str])
    assert_type((attempt.execution, attempt.generation, attempt.attempt), tuple[int, int, int])
    assert_type(attempt.deadline, datetime | None)
    assert_type(attempt.last_details, Any)
    attempt.heartbeat({"page": 17})
    assert attempt.run  # wrong: attr-defined / AttributeAccessIssue
    attempt.attempt = 2  # wrong: misc / AttributeAccessIssue
    current_attempt(1)  # wrong: call-arg / CallIssue
    return attempt.attempt


@app.workflow  # wrong: arg-type / ArgumentType, CallIssue
def no_coroutine(run: Run) -> int:
    return 1


@app.step(tmeout=3)  # wrong: call-overload, untyped-decorator / CallIssue
def misspelt() -> None: ...


async def outside(order: Order) -> None:
    assert_type(rate(order), float)
    assert_type(rate.decide(order), Verdict[float])
    assert_type(await charge(order), str)
    assert_type(reserve("a"), int)
    reserve(1)  # wrong: arg-type / ArgumentType
    async with Client(app) as client:
        handle = await client.start(fulfil, order, run_id="order-42", on_conflict="reject")
        assert_type(handle, RunHandle[str])
        assert_type(await handle.result(timeout=60), str)
        assert_type(await handle.describe(), RunDescription)
        assert_type(await client.start(sweep), RunHandle[int])
        assert_type(await client.start(restock), RunHandle[int])
        assert_type(await client.start(restock, order), RunHandle[int])
        assert_type(await client.start("fulfil", order), RunHandle[Any])
        assert_type(client.handle("order-42", fulfil), RunHandle[str])
        await handle.signal(approved, True)
        await handle.signal("approved", True)
        await handle.cancel("customer asked")
        await client.start(fulfil)  # wrong: arg-type / ArgumentType, CallIssue
        await client.start(fulfil, "order-42")  # wrong: misc / ArgumentType, CallIssue
        await client.start(fulfil, order, run_ids="order-42")  # wrong: call-overload / CallIssue
        await client.start(fulfil, order, on_conflict="replace")  # wrong: call-overload / ArgumentType, CallIssue
        await handle.signal(approved, "yes")  # wrong: misc / ArgumentType, CallIssue
    with SyncClient(app) as plain:
        started = plain.start(fulfil, order)
        assert_type(started, SyncRunHandle[str])
        assert_type(started.result(), str)
        started.signal(approved, True)
