"""The users' testing kit, used as users would."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest

from ductor_stream import App, Retry, Run, RunFailed, StepError, TerminalError, Use, current_attempt
from ductor_stream.testing import Stuck, TestEnv, export_history, replay_history

app = App("kit")


@dataclass
class Order:
    id: str
    items: list[str]


@app.resource
async def stock() -> AsyncIterator[dict[str, int]]:
    yield {"pen": 1}


@app.step()
async def charge(order: Order) -> str:
    return f"{order.id}:{current_attempt().idempotency_key}"


@app.step(retry=Retry(max_attempts=3, initial=10))
def reserve(sku: str, *, shelf: dict[str, int] = Use(stock)) -> int:
    if sku not in shelf:
        raise TerminalError(f"no {sku}", type="OutOfStock")
    return shelf[sku]


approved = app.signal("approved", bool)


@app.workflow(version="1")
async def fulfil(run: Run, order: Order) -> list[Any]:
    reserved = await asyncio.gather(*(run.step(reserve, sku) for sku in order.items))
    try:
        async with asyncio.timeout(timedelta(days=1).total_seconds()):
            ok = await run.wait_signal(approved)
    except TimeoutError:
        return ["nobody answered", run.now().isoformat()]
    await asyncio.sleep(timedelta(days=30).total_seconds())
    return [reserved, ok, await run.step(charge, order)]


@app.workflow(version="1")
async def parent(run: Run, order: Order) -> list[Any]:
    return await run.child(fulfil, order, run_id="the-child")


ORDER = Order("o1", ["pen", "pen"])


def live(test: Callable[[TestEnv], Awaitable[None]]) -> None:
    """Run an async test in an environment of its own."""

    async def run() -> None:
        async with TestEnv(app) as env:
            await test(env)

    asyncio.run(run())


def test_thirty_days_take_no_time() -> None:
    async def check(env: TestEnv) -> None:
        handle = await env.start(fulfil, ORDER, run_id="r/1")
        assert handle.waiting_for is not None
        assert "signal approved is missing" in handle.waiting_for
        await handle.signal(approved, True)
        assert await handle.result() == [[1, 1], True, "o1:kit/r%2F1/1/6"]

    live(check)


def test_a_timeout_comes_when_time_passes() -> None:
    async def check(env: TestEnv) -> None:
        handle = await env.start(fulfil, ORDER)
        await env.skip(hours=23)
        assert handle.status == "running"
        await env.skip(hours=1)
        assert handle.status == "completed"
        assert await handle.result() == ["nobody answered", "2030-01-02T00:00:00+00:00"]

    live(check)


def test_steps_and_resources_are_replaced_and_retries_are_made() -> None:
    tries: list[str] = []

    def moody(sku: str) -> int:
        tries.append(sku)
        if len(tries) < 3:
            raise ConnectionError("no route")
        return 7

    async def check(env: TestEnv) -> None:
        env.replace(reserve, moody)
        env.replace(charge, lambda order: "paid")
        handle = await env.start(fulfil, Order("o2", ["pen"]))
        await env.skip(minutes=2)
        await handle.signal(approved, False)
        assert await handle.result() == [[7], False, "paid"]
        assert tries == ["pen"] * 3

    live(check)


def test_a_failure_is_raised_with_its_type() -> None:
    async def check(env: TestEnv) -> None:
        env.replace(stock, {})
        handle = await env.start(fulfil, ORDER)
        with pytest.raises(RunFailed, match="no pen") as caught:
            await handle.result()
        assert caught.value.error_type == "OutOfStock"

    live(check)


def test_children_run_in_the_same_environment() -> None:
    async def check(env: TestEnv) -> None:
        handle = await env.start(parent, ORDER)
        await env.handle("the-child").signal(approved, True)
        assert (await handle.result())[1] is True

    live(check)


def test_a_signal_before_its_start_waits_for_it() -> None:
    async def check(env: TestEnv) -> None:
        from ductor_stream.engine.events import SignalReceived

        await env.send("late", SignalReceived("s", "approved", b"true"))
        handle = await env.start(fulfil, ORDER, run_id="late")
        assert (await handle.result())[1] is True

    live(check)


def test_what_is_not_deterministic_shows_in_the_test() -> None:
    other = App("dice")
    drawn = iter(range(100))

    @other.step()
    def roll(value: int) -> int:
        return value

    @other.workflow(version="1")
    async def gamble(run: Run) -> list[int]:
        return [await run.step(roll, next(drawn)), await run.step(roll, 0)]

    async def check() -> None:
        async with TestEnv(other) as env:
            handle = await env.start(gamble)
            with pytest.raises(Stuck, match=r"nondeterminism: history has node 1: step roll with input \[0\]"):
                await handle.result()

    asyncio.run(check())


def test_an_exported_history_is_a_regression_test() -> None:
    async def check(env: TestEnv) -> None:
        handle = await env.start(fulfil, ORDER)
        await handle.signal(approved, True)
        await handle.result()
        document = export_history(handle.run_id, handle.records)
        assert replay_history(app, document) is None
        changed = App("kit")
        changed.include(app)
        parked = replay_history(_with_other_code(), document)
        assert parked is not None
        assert parked.code == "nondeterminism"

    live(check)


def _with_other_code() -> App:
    changed = App("kit")

    @changed.step(name="charge")
    async def pay(order: Order) -> str:
        return ""

    @changed.workflow(version="1", name="fulfil")
    async def other(run: Run, order: Order) -> str:
        try:
            return await run.step(pay, order)
        except StepError:
            return ""

    return changed


def test_the_fixture_gives_environments(ductor_env: Any) -> None:
    async def check() -> None:
        env = await ductor_env(app)
        handle = await env.start(fulfil, ORDER)
        await handle.cancel("enough")
        assert handle.status == "cancelled"

    asyncio.run(check())


deep = App("deep")


@deep.workflow(version="1")
async def descend(run: Run, levels: int) -> list[str]:
    below = await run.child(descend, levels - 1) if levels else []
    return [run.info.run_id, *below]


def test_a_tree_is_as_deep_as_it_likes() -> None:
    """Ids that are made of all those above them would be too long for a key, at some eighty levels: the run got stuck."""

    async def check() -> list[str]:
        async with TestEnv(deep) as env:
            return await (await env.start(descend, 300, run_id="root")).result()

    found = asyncio.run(check())
    assert found[:2] == ["root", "root/1/1"]
    assert len(set(found)) == 301
    assert max(len(each.encode()) for each in found) <= 512
