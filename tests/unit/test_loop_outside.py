"""What needs the world outside a workflow is refused at the call, by name, with what to do instead."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from ductor_stream.engine.planners.loop import OutsideWorldError
from ductor_stream.engine.planners.outside import NoOutsideWorld
from unit.stepped_loop import SteppedLoop, every_loop_abandoned  # noqa: F401 - an autouse fixture

ENGINES = {"run_forever", "run_until_complete", "stop", "set_debug", "set_task_factory", "set_exception_handler"}
OUTSIDE = {name for name in vars(NoOutsideWorld) if not name.startswith("_")} - ENGINES
KEPT = {
    "call_at", "call_exception_handler", "call_later", "call_soon", "close", "create_future", "create_task",
    "default_exception_handler", "get_debug", "get_exception_handler", "get_task_factory", "is_closed", "is_running",
    "shutdown_asyncgens", "time",
}  # fmt: skip


def public(loop: type[asyncio.AbstractEventLoop]) -> set[str]:
    return {name for name in dir(loop) if not name.startswith("_")}


def test_every_method_of_an_event_loop_is_kept_or_refused():
    """A Python that adds a method to its loops fails here, until it is decided what a workflow may do with it."""
    assert public(asyncio.AbstractEventLoop) | public(asyncio.SelectorEventLoop) == KEPT | OUTSIDE | ENGINES


@pytest.mark.parametrize("name", sorted(OUTSIDE))
def test_the_outside_world_is_refused(name: str):
    with pytest.raises(
        OutsideWorldError, match=rf"^(asyncio\.\w+ \(loop\.{name}\)|loop\.{name}) reaches .*: do this in a step$"
    ) as caught:
        getattr(SteppedLoop(), name)("any", "arguments", at="all")
    assert isinstance(caught.value, RuntimeError)


@pytest.mark.parametrize("name", sorted(ENGINES))
def test_running_and_configuring_the_loop_is_the_engines(name: str):
    with pytest.raises(OutsideWorldError, match=rf"^loop\.{name} is the engine's"):
        getattr(SteppedLoop(), name)()


async def to_thread() -> None:
    await asyncio.to_thread(print, "in a thread")


async def open_connection() -> None:
    await asyncio.open_connection("127.0.0.1", 9)


async def start_server() -> None:
    await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)


async def open_unix_connection() -> None:
    await asyncio.open_unix_connection("nowhere")


async def start_unix_server() -> None:
    await asyncio.start_unix_server(lambda reader, writer: None, "nowhere")


async def create_subprocess_exec() -> None:
    await asyncio.create_subprocess_exec("true")


async def create_subprocess_shell() -> None:
    await asyncio.create_subprocess_shell("true")


async def run_coroutine_threadsafe() -> None:
    coro = asyncio.sleep(0)
    try:
        asyncio.run_coroutine_threadsafe(coro, asyncio.get_running_loop())
    finally:
        coro.close()


@pytest.mark.parametrize(
    "call",
    [
        to_thread,
        open_connection,
        start_server,
        open_unix_connection,
        start_unix_server,
        create_subprocess_exec,
        create_subprocess_shell,
        run_coroutine_threadsafe,
    ],
)
def test_asyncios_functions_are_refused_by_the_name_that_people_know(call: Callable[[], Any]):
    root = SteppedLoop().start(call())
    error = root.exception()
    assert isinstance(error, OutsideWorldError)
    assert str(error).startswith(f"asyncio.{call.__name__} (loop.")
