"""Node ids come from a task's place, not from the order in which a run makes its nodes."""

from __future__ import annotations

import asyncio
import contextlib
import sys

import pytest

from unit.stepped_loop import SteppedLoop, every_loop_abandoned  # noqa: F401 - an autouse fixture


def test_nodes_and_child_tasks_share_the_counter_of_their_task():
    loop = SteppedLoop()

    async def child():
        await loop.node("child")
        await asyncio.gather(loop.node("grandchild"), loop.node("grandchild"))

    async def workflow():
        await loop.node()
        await asyncio.sleep(1)
        await asyncio.create_task(child())
        await loop.node()

    loop.start(workflow())
    loop.answer("1")
    loop.due("2")
    loop.answer("3.1")
    loop.answer("3.2.1")
    loop.answer("3.3.1")
    assert loop.said == [
        "node 1",
        "timer 2 at 101",
        "child 3.1",
        "grandchild 3.2.1",
        "grandchild 3.3.1",
        "node 4",
    ]


@pytest.mark.parametrize("order", ["123", "321", "231"])
def test_places_do_not_depend_on_the_order_of_results(order: str):
    """Two branches that run the same step must not swap results."""
    loop = SteppedLoop()

    async def branch():
        return await loop.node(), await loop.node()

    async def workflow():
        return await asyncio.gather(branch(), branch(), branch())

    root = loop.start(workflow())
    for n in order:
        loop.answer(f"{n}.1", f"first of {n}")
    for n in order:
        loop.answer(f"{n}.2", f"second of {n}")
    assert root.result() == [(f"first of {n}", f"second of {n}") for n in "123"]


def test_a_task_group_places_its_tasks_in_the_order_of_creation():
    loop = SteppedLoop()

    async def workflow():
        async with asyncio.TaskGroup() as group:
            group.create_task(loop.node("a"))
            group.create_task(loop.node("b"), name="named by the user")
            await loop.node("body")

    loop.start(workflow())
    assert loop.said == ["body 3", "a 1.1", "b 2.1"]
    assert [task.get_name() for task in loop.live_tasks()] == ["task-root", "task-1", "named by the user"]


def test_wait_for_has_the_same_places_on_every_python():
    loop = SteppedLoop()

    async def workflow():
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(loop.node(), timeout=1)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(loop.node(), timeout=0)
        done = loop.create_future()
        done.set_result("at once")
        return await asyncio.wait_for(done, timeout=0), await asyncio.wait_for(loop.node(), timeout=None)

    root = loop.start(workflow())
    loop.due("1")
    loop.answer("4", "done")
    assert loop.said == ["timer 1 at 101", "node 2", "node 4"]
    assert root.result() == ("at once", "done")


def test_outside_of_tasks_the_loop_counts():
    loop = SteppedLoop()

    async def workflow():
        asyncio.get_running_loop().call_soon(lambda: asyncio.ensure_future(loop.node("from a callback")))
        await loop.node()

    loop.start(workflow())
    assert loop.said == ["node 1", "from a callback t1.1"]
    assert loop.place() == "t2"


def test_an_eager_task_has_its_place_from_the_start():
    if sys.version_info < (3, 12):
        return  # no eager tasks there
    loop = SteppedLoop()

    async def child():
        members = {asyncio.current_task()}
        await loop.node("child")
        return asyncio.current_task() in members

    async def workflow():
        task = loop.create_task(child(), eager_start=True)
        await loop.node()
        return await task

    root = loop.start(workflow())
    assert loop.said == ["child 1.1", "node 2"]
    loop.answer("1.1")
    loop.answer("2")
    assert root.result() is True
