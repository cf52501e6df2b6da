"""Random workflow programs: what the property tests of the engine run.

A program is nested tuples, so that hypothesis can shrink it and a failing one can be pasted into a test.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from ductor_stream.declarations import Workflow
from ductor_stream.engine import values
from ductor_stream.engine.definition import (
    RetryPolicy,
    SignalDefinition,
    StepDefinition,
    StepOptions,
    WorkflowDefinition,
)
from ductor_stream.errors import ChildError, StepError

SCALE = float(os.environ.get("DUCTOR_TEST_SCALE", "1"))
"""How many times the default number of examples the property tests try."""

# A busy machine is no reason to fail: neither deadlines nor the health check that measures the drawing of examples.
settings.register_profile("engine", deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow])


def examples(count: int) -> settings:
    """Settings of a property test that tries about so many examples, times ``DUCTOR_TEST_SCALE``."""
    return settings(settings.get_profile("engine"), max_examples=max(1, round(count * SCALE)))


class Declared:
    """What ``Run.step`` and ``Run.wait_signal`` need of a declaration."""

    def __init__(self, definition: Any) -> None:
        self.definition = definition


def step(name: str, options: StepOptions | None = None, output: Any = Any) -> Declared:
    """A step that takes any JSON."""
    definition = StepDefinition(name, options or StepOptions(), lambda args, kwargs: values.encode(list(args)), output)
    return Declared(definition)


def signal(name: str, payload: Any = Any) -> Declared:
    """A signal, with any payload unless a type is given."""
    return Declared(SignalDefinition(name, payload))


def workflow(
    function: Callable[..., Any], *, digest: str = "d1", version: str = "1", **more: Any
) -> WorkflowDefinition:
    """A definition called ``wf``, without input unless ``takes_input`` says so."""
    options: dict[str, Any] = {"input_type": None, "output_type": Any, "takes_input": False, **more}
    return WorkflowDefinition(name="wf", version=version, function=function, digest=digest, **options)


STEPS = {name: step(name, StepOptions(retry=RetryPolicy(max_attempts=3, initial_ms=50))) for name in "abc"}
SIGNALS = {name: signal(name) for name in ("x", "y")}
CHILD: Workflow[Any, Any] = Workflow(workflow(lambda run: run, input_type=Any, takes_input=True))

choices = st.lists(st.integers(0, 999), min_size=12, max_size=40)
"""What happens to a run: each number is one choice among all that can happen then (see ``Driver.run_through``)."""

_steps = st.tuples(st.just("step"), st.sampled_from("abc"), st.integers(0, 5))
leaves = st.one_of(
    _steps,
    _steps,
    st.tuples(st.just("sleep"), st.sampled_from([0.0, 0.05, 1.0, 60.0])),
    st.tuples(st.just("signal"), st.sampled_from(["x", "y"])),
    st.tuples(st.sampled_from(["draw", "child", "view", "patched"])),
)


def _combined(leaves: st.SearchStrategy[Any], combine: Callable[[Any], st.SearchStrategy[Any]]) -> Any:
    parts = st.recursive(leaves, combine, max_leaves=6)
    return st.tuples(st.just("seq"), st.lists(parts, min_size=1, max_size=4))


def _together(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(
        st.tuples(st.sampled_from(["seq", "gather", "group"]), st.lists(inner, min_size=1, max_size=4)),
        st.tuples(st.sampled_from(["shield", "retrying"]), inner),
    )


def _tidily(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(_together(inner), st.tuples(st.just("finally"), inner, inner))


def _anything(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(
        _tidily(inner),
        st.tuples(st.just("race"), st.lists(inner, min_size=1, max_size=3)),
        st.tuples(st.sampled_from(["timeout", "within"]), st.sampled_from([0.0, 0.5, 30.0]), inner),
        st.tuples(st.sampled_from(["locked", "queued"]), st.lists(inner, min_size=1, max_size=3)),
        st.tuples(st.just("announced"), inner),
        st.tuples(st.just("map"), st.lists(st.integers(0, 5), max_size=4)),
    )


programs = _combined(leaves, _anything)
"""Any program."""

timeless = _combined(_steps, _tidily)
"""Programs whose result depends on the results of their steps alone, not on their order or on time."""

simple = _combined(_steps, _together)
"""Those of them that do nothing more once an exception is raised."""


def function_of(program: Any) -> Callable[..., Any]:
    """A workflow function that runs the program."""

    async def run_program(run: Any) -> Any:
        return await _run(run, program)

    return run_program


async def _run(run: Any, program: Any) -> Any:
    match program:
        case ("step", name, argument):
            return await run.step(STEPS[name], argument)
        case ("sleep", seconds):
            return await asyncio.sleep(seconds)
        case ("signal", name):
            return await run.wait_signal(SIGNALS[name])
        case ("seq", parts):
            return [await _run(run, part) for part in parts]
        case ("shield" | "retrying" | "finally", *_):
            return await _run_guarded(run, program)
        case ("locked" | "queued" | "announced" | "within" | "map", *_):
            return await _run_shared(run, program)
        case (_,):
            return await _run_special(run, program[0])
        case _:
            return await _run_together(run, program)


async def _run_special(run: Any, kind: str) -> Any:
    match kind:
        case "draw":
            return [run.random.randint(0, 9), str(run.uuid4()), run.now().isoformat()]
        case "child":
            try:
                return await run.child(CHILD, 7)
            except ChildError as error:
                return error.status
        case "view":
            run.set_view({"drawn": run.random.randint(0, 9)})
    return run.patched("change")


async def _run_together(run: Any, program: Any) -> Any:
    match program:
        case ("gather", parts):
            return await asyncio.gather(*(_run(run, part) for part in parts))
        case ("group", parts):
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(_run(run, part)) for part in parts]
            return [task.result() for task in tasks]
        case ("timeout", seconds, part):
            try:
                async with asyncio.timeout(seconds):
                    return await _run(run, part)
            except TimeoutError:
                return "timed out"
        case ("race", parts):
            tasks = [asyncio.create_task(_run(run, part)) for part in parts]
            done, late = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)
            return [repr(task.exception() or task.result()) for task in done]
    raise AssertionError(program)


async def _run_guarded(run: Any, program: Any) -> Any:
    match program:
        case ("shield", part):
            return await asyncio.shield(_run(run, part))
        case ("retrying", part):
            try:
                return await _run(run, part)
            except StepError as error:
                return [error.type, await _run(run, part)]
        case ("finally", part, cleanup):
            try:
                return await _run(run, part)
            finally:
                await _run(run, cleanup)
    raise AssertionError(program)


async def _run_shared(run: Any, program: Any) -> Any:
    match program:
        case ("locked", parts):
            lock = asyncio.Lock()
            return await asyncio.gather(*(_run_locked(run, lock, part) for part in parts))
        case ("queued", parts):
            queue: asyncio.Queue[Any] = asyncio.Queue(1)
            async with asyncio.TaskGroup() as group:
                for part in parts:
                    group.create_task(_run_queued(run, queue, part))
                return [await queue.get() for _ in parts]
        case ("announced", part):
            event = asyncio.Event()
            task = asyncio.create_task(_run_announced(run, event, part))
            await event.wait()
            return await task
        case ("within", seconds, part):
            try:
                return await asyncio.wait_for(_run(run, part), seconds)
            except TimeoutError:
                return "timed out"
        case ("map", items):
            found = await run.map(STEPS["a"], items, max_in_flight=2, on_error="collect")
            return [each.type if isinstance(each, StepError) else each for each in found]
    raise AssertionError(program)


async def _run_locked(run: Any, lock: asyncio.Lock, part: Any) -> Any:
    async with lock:
        return await _run(run, part)


async def _run_queued(run: Any, queue: asyncio.Queue[Any], part: Any) -> None:
    await queue.put(await _run(run, part))


async def _run_announced(run: Any, event: asyncio.Event, part: Any) -> Any:
    try:
        return await _run(run, part)
    finally:
        event.set()
