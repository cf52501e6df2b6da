"""Three places where asyncio's own order depends on memory addresses, and one where it depends on Python's version.

They are module functions and a private class, with no hook that a loop could use, so they are replaced for the process.
On any loop but a workflow's they do what they did. A module that took one by name before (``from asyncio import
as_completed``), as users' modules mostly do, gets the replacement under that name too.

- ``asyncio.as_completed`` makes its tasks in the order of a set of coroutines: the places of two branches would be
  swapped from one process to the next.
- ``asyncio.all_tasks`` lists a set that all loops of the process share.
- The future of ``asyncio.gather`` is hashed by its address, and ``asyncio.wait`` puts it into a set.
- ``asyncio.wait_for`` runs a coroutine as a task of its own up to 3.11 and in the caller's task since: a coordinator
  with a newer Python would look for the nodes of an open run in other places.
"""

from __future__ import annotations

import asyncio
import sys
from asyncio import events, futures, tasks
from collections.abc import Awaitable, Callable, Iterable, Iterator
from types import ModuleType
from typing import Any, TypeVar

from ductor_stream.engine.planners.tasks import OrderedLoop, ordinal_of

T = TypeVar("T")

_all_tasks = tasks.all_tasks
_as_completed: Callable[..., Any] = tasks.as_completed
_wait_for: Callable[..., Any] = tasks.wait_for


def all_tasks(loop: asyncio.AbstractEventLoop | None = None) -> set[asyncio.Task[Any]]:
    """asyncio.all_tasks; of a workflow's loop in order of creation."""
    home = loop or events.get_running_loop()
    if not isinstance(home, OrderedLoop):
        return _all_tasks(loop)
    found: set[asyncio.Task[Any]] = set(home.live_tasks())
    found.update(_all_tasks(home))  # tasks made by asyncio.Task(…) itself, if any
    return found


def as_completed(fs: Iterable[Awaitable[T]], *, timeout: float | None = None) -> Any:
    """asyncio.as_completed; on a workflow's loop the tasks are made in the order of ``fs``."""
    if isinstance(events._get_running_loop(), OrderedLoop) and not _is_awaitable(fs):
        fs = [asyncio.ensure_future(each) for each in dict.fromkeys(fs)]
    return _as_completed(fs, timeout=timeout)


async def wait_for(fut: Awaitable[T], timeout: float | None) -> T:
    """asyncio.wait_for; on a workflow's loop as Python 3.12 has it, whatever Python this is."""
    if not isinstance(events.get_running_loop(), OrderedLoop):
        result: T = await _wait_for(fut, timeout)
        return result
    if timeout is not None and timeout <= 0:
        return await _result_now(asyncio.ensure_future(fut))
    async with asyncio.timeout(timeout):
        return await fut


async def _result_now(future: asyncio.Future[T]) -> T:
    if not future.done():
        await tasks._cancel_and_wait(future, loop=events.get_running_loop())  # type: ignore[attr-defined]
    try:
        return future.result()
    except asyncio.CancelledError as error:
        raise TimeoutError from error


def _gathered_hash(future: Any) -> int:
    return ordinal_of(future) if isinstance(future.get_loop(), OrderedLoop) else object.__hash__(future)


def _is_awaitable(fs: Any) -> bool:
    """Whether ``fs`` is one awaitable instead of many: as_completed itself says so better."""
    return futures.isfuture(fs) or asyncio.iscoroutine(fs)


def install() -> None:
    """Put the replacements in place, for the whole process. Doing it again changes nothing."""
    replaced: dict[int, Any] = {id(_all_tasks): all_tasks, id(_as_completed): as_completed}
    if sys.version_info < (3, 12):
        replaced[id(_wait_for)] = wait_for
    modules: tuple[Any, ...] = (asyncio, tasks)
    for module in modules:
        for replacement in replaced.values():
            setattr(module, replacement.__name__, replacement)
    for names in _namespaces():
        for name, found in list(names.items()):
            if id(found) in replaced:
                names[name] = replaced[id(found)]
    gathering: Any = tasks._GatheringFuture  # type: ignore[attr-defined]
    gathering._ordinal = 0
    gathering.__hash__ = _gathered_hash


def _namespaces() -> Iterator[dict[str, Any]]:
    """Global names of all modules so far but asyncio's own and this one, which keeps the originals."""
    for known_as, module in list(sys.modules.items()):
        # Such a thing need not be a module, and one that is loaded lazily would be loaded by looking at it.
        if isinstance(module, ModuleType) and known_as.partition(".")[0] not in ("asyncio", "_asyncio"):
            names = object.__getattribute__(module, "__dict__")
            if names is not globals():
                yield names
