"""The order of a set of strings is another one in each process: the kit shows it, though a test has but one."""

from __future__ import annotations

import asyncio
import importlib.machinery
import sys
import types
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import pydantic
import pytest

from ductor_stream import App, Run
from ductor_stream.declarations import Workflow
from ductor_stream.testing import Stuck, TestEnv
from ductor_stream.testing.elsewhere import differences, hears_sets, makes_sets

app = App("elsewhere")
NAMES = ["ada", "bo", "cy", "dan", "eve", "flo", "gus", "hal"]


@app.step
def greet(name: str) -> str:
    return f"hello {name}"


def known(names: Iterable[str]) -> set[str]:
    return {name for name in names if name}


@app.workflow
async def of_a_set(run: Run, names: list[str]) -> list[str]:
    """In the order in which a helper's set happens to have them."""
    return [await run.step(greet, name) for name in known(names)]


@app.workflow
async def at_once(run: Run, names: list[str]) -> list[str]:
    """Side by side: what differs is only which of them is which."""
    return await asyncio.gather(*(run.step(greet, name) for name in set(names)))


@app.workflow
async def in_order(run: Run, names: list[str]) -> list[str]:
    return [await run.step(greet, name) for name in sorted(known(names))]


@app.workflow
async def whoever_is_first(run: Run, names: list[str]) -> list[str]:
    """asyncio.wait gives sets of tasks, whose order would be that of their addresses."""
    left = {asyncio.create_task(run.step(greet, name)) for name in names}
    said = []
    while left:
        done, left = await asyncio.wait(left, return_when=asyncio.FIRST_COMPLETED)
        said += [await run.step(greet, task.result()) for task in done]
    return said


@app.workflow
async def waits(run: Run, names: list[str]) -> str:
    """Has not ended when its test does."""
    for name in known(names):
        await run.step(greet, name)
    return await run.wait_signal(app.signal("word", str))


handed = App("handed")


@dataclass
class Parcel:
    tags: set[str]


class Label(pydantic.BaseModel):
    words: frozenset[str] | None = None


@handed.step
def greet_all(name: str) -> str:
    return f"hello {name}"


@handed.step
def parcel() -> list[Parcel]:
    return [Parcel(set(NAMES))]


@handed.workflow
async def of_a_result(run: Run) -> list[str]:
    """Its own code makes no set at all."""
    return [await run.step(greet_all, tag) for each in await run.step(parcel) for tag in each.tags]


def live(workflow: Workflow[Any, Any], leave: Callable[[Any], None] = lambda _: None) -> Any:
    """Start it in an environment, look at it, and leave."""

    async def run() -> Any:
        async with TestEnv(app) as env:
            handle = await env.start(workflow, NAMES)
            leave(handle)
            return await handle.result() if handle.status == "completed" else None

    return asyncio.run(run())


@pytest.mark.parametrize("workflow", [of_a_set, at_once, waits])
def test_an_order_that_depends_on_the_hash_seed_fails_the_test(workflow: Workflow[Any, Any]) -> None:
    with pytest.raises(Stuck, match=r"another hash seed, nondeterminism: history has node \S+: step greet with input"):
        live(workflow)


def test_a_set_that_was_handed_over_has_no_order_either() -> None:
    async def run() -> Any:
        async with TestEnv(handed) as env:
            return await (await env.start(of_a_result)).result()

    assert not makes_sets(of_a_result.definition.function)
    with pytest.raises(Stuck, match="another hash seed, nondeterminism"):
        asyncio.run(run())


@pytest.mark.parametrize(
    ("type", "holds"),
    [(Label, True), (dict[str, Parcel], True), (Parcel | None, True), (list[str], False), (Any, False), (None, False)],
)
def test_sets_are_found_in_what_a_workflow_may_be_handed(type: Any, holds: bool) -> None:
    asked = App("asked")

    @asked.workflow
    async def nothing(run: Run) -> None: ...

    assert not hears_sets(asked, nothing.definition)
    asked.signal("word", type)
    assert hears_sets(asked, nothing.definition) == holds


@pytest.mark.parametrize("workflow", [in_order, whoever_is_first])
def test_an_order_that_does_not_is_left_alone(workflow: Workflow[Any, Any]) -> None:
    assert len(live(workflow)) == len(NAMES)


def test_a_test_that_fails_is_told_its_own_error() -> None:
    def leave(handle: Any) -> None:
        raise ValueError("the test's own")

    with pytest.raises(ValueError, match="the test's own"):
        live(of_a_set, leave)


def test_an_app_that_no_other_process_can_have_is_not_tried() -> None:
    local = App("local")

    @local.workflow
    async def counts(run: Run) -> int:
        return len({*NAMES})

    async def run() -> Any:
        async with TestEnv(local) as env:
            return await (await env.start(counts)).result()

    assert asyncio.run(run()) == len(NAMES)


def test_a_module_that_cannot_be_had_once_more_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not silently, and it is no failure of the run."""
    gone = types.ModuleType("gone_since")
    gone.__spec__, gone.local = importlib.machinery.ModuleSpec("gone_since", None), App("local")  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "gone_since", gone)
    with pytest.warns(UserWarning, match="another process cannot have gone_since:local: ModuleNotFoundError"):
        assert differences(gone.local, [b"{}"]) == []


class Helper:
    def of_names(self) -> frozenset[str]:
        return frozenset(NAMES)


def plain() -> list[str]:
    return [name.upper() for name in NAMES]


def literal() -> int:
    return sum(len(name) for name in {*NAMES})


def by_class() -> Any:
    return Helper().of_names()


def by_views() -> Any:
    return dict.fromkeys(NAMES).keys() & {"x": 1}.keys()


def by_another() -> Any:
    return literal()


def closed_over() -> Any:
    inner = literal
    return lambda: inner()


@pytest.mark.parametrize(
    ("function", "expected"),
    [(plain, False), (literal, True), (by_class, True), (by_views, True), (by_another, True), (closed_over(), True)],
)
def test_which_code_makes_sets(function: Any, expected: bool) -> None:
    assert makes_sets(function) is expected
