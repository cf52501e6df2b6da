"""Node ids come from a task's place, and no order depends on addresses, hash seeds or the collector."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ductor_stream.engine.planners.loop import WorkflowFuture, WorkflowTask
from unit import unordered_program
from unit.stepped_loop import SteppedLoop, every_loop_abandoned  # noqa: F401 - an autouse fixture

# -- places -----------------------------------------------------------------------------------


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
            await asyncio.wait_for(loop.node(), timeout=5)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(loop.node(), timeout=0)
        return await asyncio.wait_for(loop.node(), timeout=None)

    root = loop.start(workflow())
    loop.due("1")
    loop.answer("4", "done")
    assert loop.said == ["timer 1 at 105", "node 2", "node 4"]
    assert root.result() == "done"


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


# -- order ------------------------------------------------------------------------------------


def said_by_program(seed: str, scattered: int) -> str:
    root = Path(__file__).parents[2]
    paths = os.pathsep.join([str(root), str(root / "tests")])
    environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": paths}
    command = [sys.executable, unordered_program.__file__, str(scattered)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout


def test_another_process_hears_the_same():
    first = said_by_program("0", 0)
    assert first.endswith("None\n")
    for line in (
        "after wait19",
        "after ['a5', 'b5']",
        "after shield5",
        "after as11",
        "cancelled group11",
        "cancelled all192",
    ):
        assert line in first
    for seed, scattered in [("1", 12_345), ("2", 777), ("random", 54_321)]:
        assert said_by_program(seed, scattered) == first


def test_tasks_and_futures_hash_by_number():
    loops = SteppedLoop(), SteppedLoop()
    hashes = []
    for loop in loops:

        async def workflow(loop: SteppedLoop):
            futures = [loop.create_future() for _ in range(3)]
            return [hash(futures[2]), hash(asyncio.current_task()), hash(futures[0]), hash(asyncio.gather(*futures))]

        hashes.append(loop.start(workflow(loop)).result())
    assert hashes == [[2, 1, 3, 5]] * 2  # gather itself puts its arguments into a dict


def test_the_process_wide_set_of_tasks_is_no_heap_of_collisions():
    """Were all first tasks filed there under the hash 1, each new run would walk through all others."""
    loops = [SteppedLoop() for _ in range(100)]
    roots = {id(loop.start(loop.node())) for loop in loops}
    for name in ("_all_tasks", "_scheduled_tasks"):
        filed = getattr(asyncio.tasks, name, None)
        if filed is None:
            continue
        hashes = {hash(ref) for ref in filed.data if id(ref()) in roots}
        assert len(hashes) == 100
    assert len({hash(loop.live_tasks()[0]) for loop in loops}) == 1


def test_tasks_need_a_workflows_loop():
    async def nothing() -> None: ...

    loop = asyncio.new_event_loop()
    coro = nothing()
    try:
        with pytest.raises(TypeError, match="needs the workflow's loop"):
            WorkflowTask(coro, loop=loop)
    finally:
        coro.close()
        loop.close()


def test_other_loops_keep_asyncios_own_behaviour():
    async def main() -> tuple[list[int], int, set[asyncio.Task]]:
        async def value(n: int) -> int:
            await asyncio.sleep(0)
            return n

        gathered = asyncio.gather(value(1), value(2))
        assert hash(gathered) == object.__hash__(gathered)
        assert not isinstance(gathered, WorkflowFuture)
        completed = [await each for each in asyncio.as_completed([value(3), value(4)], timeout=5)]
        await gathered
        return sorted(completed), await asyncio.wait_for(value(5), timeout=5), asyncio.all_tasks()

    completed, waited, tasks = asyncio.run(main())
    assert (completed, waited, len(tasks)) == ([3, 4], 5, 1)


def test_as_completed_still_says_what_it_wants():
    loop = SteppedLoop()

    async def workflow():
        future = loop.create_future()
        with pytest.raises(TypeError):
            list(asyncio.as_completed(future))

    assert loop.start(workflow()).exception() is None


# -- the collector ----------------------------------------------------------------------------


def test_a_generator_that_was_left_is_closed_when_the_workflow_says_so():
    """asyncio would close it in a task of its own whenever it is freed: a node at a moment that does not repeat."""
    loop = SteppedLoop()

    async def pages(name: str):
        try:
            yield 1
            yield 2
        finally:
            await loop.node(f"cleanup of {name}")

    async def workflow():
        for name in ("first", "second"):
            async for _ in pages(name):
                break
        for _ in range(200):
            async for _ in pages("exhausted"):
                break
            else:
                raise AssertionError
            break
        gc.collect()
        await loop.node("body")
        await loop.shutdown_asyncgens()

    root = loop.start(workflow())
    for place in ("1", "2", "3", "4"):
        loop.answer(place)
    assert loop.said == [
        "body 1",
        "cleanup of first 2",
        "cleanup of second 3",
        "cleanup of exhausted 4",
    ]
    assert root.exception() is None


def test_generators_that_ended_are_forgotten():
    loop = SteppedLoop()

    async def one():
        yield 1

    async def workflow():
        for _ in range(1_000):
            async for _ in one():
                pass

    assert loop.start(workflow()).exception() is None
    assert len(loop._generators) < 200
