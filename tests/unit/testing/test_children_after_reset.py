"""What becomes of child runs when their parent, or they themselves, are reset or retried."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Literal

import pytest

from ductor_stream import App, Run, RunFailed, TerminalError
from ductor_stream.testing import TestEnv
from ductor_stream.testing.env import TestHandle

Close = Literal["cancel", "terminate", "abandon"]

app = App("kin")
answered = app.signal("answered", str)
broken: list[str] = []


@app.step()
def look(what: str) -> str:
    if what in broken:
        raise TerminalError(f"{what} is broken")
    return what


@app.workflow(version="1")
async def kid(run: Run, what: str) -> str:
    return f"{await run.step(look, what)} {run.info.run_id} {run.info.execution}"


@app.workflow(version="1")
async def asks(run: Run) -> str:
    return await run.wait_signal(answered)


@app.workflow(version="1")
async def awaits(run: Run, id: str) -> str:
    found = await run.step(look, "first")
    return await run.child(kid, found, run_id=id)


@app.workflow(version="1")
async def detaches(run: Run, id: str) -> str:
    await run.step(look, "first")
    begun = await run.child(kid, "second", run_id=id, detach=True)
    await run.step(look, "last")
    return begun


@app.workflow(version="1")
async def asked(run: Run, how: Close) -> str:
    await run.step(look, "first")
    return await run.child(asks, run_id="asks", parent_close=how)


@app.workflow(version="1")
async def looks_and_asks(run: Run) -> str:
    found = await run.step(look, "first")
    return f"{found} {await run.wait_signal(answered)}"


@app.workflow(version="1")
async def reads(run: Run) -> str:
    return await run.child(looks_and_asks, run_id="child")


def live(test: Callable[[TestEnv], Awaitable[None]]) -> None:
    """Run an async test in an environment of its own."""

    async def run() -> None:
        async with TestEnv(app) as env:
            await test(env)

    broken.clear()
    asyncio.run(run())


async def reset(handle: TestHandle, to_node: str = "1") -> Any:
    """Send the run back there; returns the result of what it does then."""
    await handle.command("reset", to_node=to_node)
    return await handle.result()


@pytest.mark.parametrize(
    ("workflow", "id", "first", "again"),
    [
        (awaits, "", "first p/1/2 1", ["first p/1/2/~2 1", "first p/1/2/~3 1"]),
        (awaits, "mine", "first mine 1", ["first mine 2", "first mine 3"]),
        (detaches, "", "p/1/2", ["p/1/2/~2", "p/1/2/~3"]),
        (detaches, "mine", "mine", ["mine", "mine"]),
    ],
    ids=["awaited", "awaited, of a given id", "detached", "detached, of a given id"],
)
def test_a_child_that_comes_after_the_node_of_a_reset_is_begun_anew(
    workflow: Any, id: str, first: str, again: list[str]
) -> None:
    async def check(env: TestEnv) -> None:
        handle = await env.start(workflow, id, run_id="p")
        assert await handle.result() == first
        assert [await reset(handle) for _ in again] == again
        if workflow is detaches:
            started = [env.handle(each).state.header.execution for each in again]
            assert started == [1, 1]  # of a given id it is begun where there is no run of that id yet

    live(check)


def test_a_detached_child_that_a_reset_keeps_keeps_its_id() -> None:
    async def check(env: TestEnv) -> None:
        handle = await env.start(detaches, "", run_id="p")
        assert await reset(handle) == "p/1/2/~2"
        assert await reset(handle, "3") == "p/1/2/~2"

    live(check)


def test_a_retry_starts_no_detached_child_twice() -> None:
    """What had failed is tried again under the same idempotency keys: so is what its end had started."""

    other = App("hasty")
    other.include(app)

    @other.workflow(version="1")
    async def hasty(run: Run) -> str:
        await run.step(look, "first")
        begun = await run.child(kid, "second", detach=True)
        if broken:
            raise TerminalError("after all")
        return begun

    async def check() -> None:
        async with TestEnv(other) as env:
            broken[:] = ["something"]
            handle = await env.start(hasty, run_id="p")
            with pytest.raises(RunFailed):
                await handle.result()
            broken.clear()
            await handle.command("retry")
            assert (await handle.result(), env.handle("p/1/2").state.header.execution) == ("p/1/2", 1)

    asyncio.run(check())


@pytest.mark.parametrize("how", ["cancel", "terminate", "abandon"])
def test_a_child_of_a_given_id_that_is_still_open_is_not_begun_anew(how: Close) -> None:
    async def check(env: TestEnv) -> None:
        handle = await env.start(asked, how, run_id="p")
        await handle.command("reset", to_node="1")
        if how == "abandon":
            with pytest.raises(RunFailed, match="it is that of execution 1, node 2"):
                await handle.result()
            assert env.handle("asks").status == "running"
        else:
            await env.handle("asks").signal(answered, "hello")
            assert (await handle.result(), env.handle("asks").state.header.execution) == ("hello", 2)

    live(check)


def test_the_parent_of_a_child_that_is_reset_while_open_hears_how_it_ends_then() -> None:
    async def check(env: TestEnv) -> None:
        handle = await env.start(reads, run_id="p")
        await env.handle("child").command("reset", to_node="1")
        assert (handle.status, env.handle("child").status) == ("running", "running")
        await env.handle("child").signal(answered, "hello")
        assert (await handle.result(), env.handle("child").state.header.execution) == ("first hello", 2)
        assert await reset(env.handle("child")) == "first hello"  # it is told again, to nobody
        assert await handle.result() == "first hello"

    live(check)


@app.workflow(version="1")
async def turns(run: Run, n: int) -> str:
    found = await run.step(look, f"turn {n}")
    paid = await run.child(kid, found, run_id="invoice-7")
    if n == 1:
        run.continue_as_new(2)
    return paid


async def _turns() -> list[str]:
    async with TestEnv(app) as env:
        broken[:] = ["turn 2"]
        handle = await env.start(turns, 1, run_id="turns")
        with pytest.raises(RunFailed):
            await handle.result()
        broken.clear()
        await handle.command("retry")
        with pytest.raises(RunFailed, match="invoice-7 exists already"):
            await handle.result()
        return [await env.handle("invoice-7").result()]


def test_an_id_of_the_codes_guards_against_a_second_child_of_another_turn() -> None:
    """Whether something else failed meanwhile, and was tried again, changes nothing about that."""
    assert asyncio.run(_turns()) == ["turn 1 invoice-7 1"]


@app.workflow(version="1")
async def idles(run: Run) -> str:
    return await run.wait_signal(answered)


async def _cancelled_while_paused() -> str:
    async with TestEnv(app) as env:
        handle = await env.start(idles, run_id="idles")
        await handle.command("pause")
        await handle.command("cancel")
        await handle.command("reset", to_transition=handle.records[-1].seq)
        await handle.signal(answered, "yes")
        found: str = await handle.result()
        return found


def test_a_cancel_that_was_not_heard_goes_with_its_execution() -> None:
    assert asyncio.run(_cancelled_while_paused()) == "yes"
