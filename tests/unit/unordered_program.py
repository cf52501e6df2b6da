"""A workflow that goes through every place where asyncio's order could depend on memory addresses or hash seeds.

Run as a script it prints what its loop heard, line by line. Its argument is how many objects of odd sizes to scatter
over the heap first, so that addresses differ from run to run even without address randomisation.
"""

from __future__ import annotations

import asyncio
import sys

from unit.stepped_loop import SteppedLoop


async def branch(loop: SteppedLoop, name: str) -> str:
    try:
        await loop.node(name)
        await loop.node(f"{name} again")
    except asyncio.CancelledError:
        loop.said.append(f"cancelled {name}")
        raise
    return name


async def workflow(loop: SteppedLoop) -> None:
    # asyncio.wait returns sets; what is done is answered in the order of iteration.
    tasks = [asyncio.create_task(branch(loop, f"wait{n}")) for n in range(20)]
    done, pending = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    loop.said += [f"pending {task.get_name()}" for task in pending]
    done, pending = await asyncio.wait(pending)
    for task in done:
        await loop.node(f"after {task.result()}")
    # gather's and shield's futures, as members of a set.
    groups = [asyncio.gather(branch(loop, f"a{n}"), branch(loop, f"b{n}")) for n in range(6)]
    shields = [asyncio.shield(branch(loop, f"shield{n}")) for n in range(6)]
    done, _ = await asyncio.wait([*groups, *shields])
    for future in done:
        await loop.node(f"after {future.result()}")
    # as_completed makes tasks of a set of coroutines.
    for finished in asyncio.as_completed([branch(loop, f"as{n}") for n in range(12)]):
        await loop.node(f"after {await finished}")
    # A task group cancels its members out of a set.
    try:
        async with asyncio.TaskGroup() as group:
            for n in range(12):
                group.create_task(branch(loop, f"group{n}"))
            await loop.node("body")
            raise ValueError
    except* ValueError:
        pass
    # all_tasks is a set of all loops' tasks; those left here meet in one slot of a set, where who came first matters.
    for n in range(200):
        asyncio.create_task(branch(loop, f"all{n}") if n % 32 == 0 else asyncio.sleep(0))
    await loop.node("between")
    for task in asyncio.all_tasks():
        if task is not asyncio.current_task():
            task.cancel()


def heard(scattered: int) -> list[str]:
    """What the loop of the workflow hears, after so many objects were scattered over the heap."""
    heap = [bytearray(n % 997) for n in range(scattered)]
    others = [SteppedLoop() for _ in range(len(heap) % 50)]
    for other in others:
        other.start(branch(other, "other"))
    loop = SteppedLoop()
    root = loop.start(workflow(loop))
    while loop.nodes:
        places = list(loop.nodes)
        for place in places[1::2] + places[0::2]:  # not in the order of creation
            if place in loop.nodes:
                loop.answer(place)
    return [*loop.said, str(root.exception())]


if __name__ == "__main__":
    print("\n".join(heard(int(sys.argv[1]))))
