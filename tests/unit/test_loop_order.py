"""No order depends on addresses, hash seeds or the collector."""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ductor_stream.engine.planners.loop import WorkflowFuture, WorkflowTask
from unit import early_names, unordered_program
from unit.stepped_loop import SteppedLoop, every_loop_abandoned  # noqa: F401 - an autouse fixture

# -- order ------------------------------------------------------------------------------------


def said_by_program(seed: str, scattered: int) -> str:
    root = Path(__file__).parents[2]
    paths = os.pathsep.join([str(root), str(root / "tests")])
    environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": paths}
    command = [sys.executable, unordered_program.__file__, str(scattered)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout


def test_another_process_hears_the_same():
    first = said_by_program("0", 0)
    assert first.splitlines() == unordered_program.heard(0)
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


def test_names_that_were_taken_from_asyncio_before_the_loop_was_there_are_replaced():
    """``from asyncio import as_completed``, as in users' modules; ORIGINALS shows that only names are, no values."""
    root = Path(__file__).parents[2]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(root), str(root / "tests")])}
    command = [sys.executable, early_names.__file__]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    *results, still_cpythons = done.stdout.splitlines()
    assert results == [str([*range(0, 16, 2), 1]), str([*range(0, 16, 2)])]
    assert still_cpythons == str([False, False, sys.version_info >= (3, 12)])


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
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(value(6), timeout=0)
        return sorted(completed), await asyncio.wait_for(value(5), timeout=5), asyncio.all_tasks()

    completed, waited, tasks = asyncio.run(main())
    assert (completed, waited, len(tasks)) == ([3, 4], 5, 1)


def test_as_completed_still_says_what_it_wants():
    loop = SteppedLoop()

    async def workflow():
        coro = loop.node()
        for one in (loop.create_future(), coro):
            with pytest.raises(TypeError, match="an iterable of"):
                list(asyncio.as_completed(one))
        coro.close()

    assert loop.start(workflow()).exception() is None


def test_as_completed_gives_up_in_time():
    loop = SteppedLoop()

    async def workflow():
        for each in asyncio.as_completed([loop.node()], timeout=5):
            await each

    root = loop.start(workflow())
    [timer] = loop.pending
    loop.due(timer)
    assert isinstance(root.exception(), TimeoutError)


def test_all_tasks_are_those_of_the_loop_that_is_meant():
    loop, other = SteppedLoop(), SteppedLoop()
    other.start(other.node())

    async def workflow():
        # A task that asyncio itself made, and that the loop was not asked for.
        plain = asyncio.Task(asyncio.sleep(0))
        assert plain in asyncio.all_tasks()
        await plain
        await asyncio.gather(*(loop.node() for _ in range(50)))

    loop.start(workflow())
    assert list(asyncio.all_tasks(loop)) == loop.live_tasks()
    assert len(loop.live_tasks()) == 51


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


def test_a_generator_that_fails_at_its_end_keeps_no_other_open():
    loop, held = SteppedLoop(), []

    async def pages(n: int):
        try:
            yield n
        finally:
            if n == 1:
                raise ValueError("not closed")
            await loop.node("cleanup")

    async def workflow():
        for n in range(200):  # enough to make the loop forget those that ended
            held.append(pages(n))
            await anext(held[-1])
        await loop.shutdown_asyncgens()

    root = loop.start(workflow())
    while loop.nodes:
        loop.answer(*loop.nodes)
    assert root.exception() is None
    assert len(loop.said) == 199
    [told] = loop.exceptions
    assert told["message"].startswith("an error occurred during closing of asynchronous generator")
    assert (str(told["exception"]), told["asyncgen"]) == ("not closed", held[1])


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
