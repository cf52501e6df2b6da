"""Random workflow programs: a program is nested JSON lists, the workflow's input, and one workflow runs them all."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from random import Random
from typing import Any

from ductor_stream.app import App
from ductor_stream.coordinator.definitions import Definitions
from ductor_stream.declarations import Step
from ductor_stream.definitions.policy import Retry
from ductor_stream.engine.planners.run import Run
from ductor_stream.errors import ChildError, StepError

NAMESPACE = "sim"
QUEUES = ("default", "slow")
SIGNALS = ("x", "y")
_WIDE = 34

app = App(NAMESPACE)
_retry = Retry(max_attempts=3, initial=0.05, maximum=0.5)
STEPS: dict[str, Step[..., Any]] = {
    "a": app.external_step("a", input=Any, output=Any, retry=_retry),
    "b": app.external_step("b", input=Any, output=Any, retry=_retry, timeout=20),
    "c": app.external_step("c", input=Any, output=Any, retry=_retry, queue="slow", heartbeat=5, timeout=30),
    "d": app.external_step("d", input=Any, output=Any, retry=_retry, schedule_to_start=40, schedule_to_close=90),
}
_signals = {name: app.signal(name, Any) for name in SIGNALS}


@app.workflow(fails_on=(ChildError,))
async def program(run: Run, body: Any) -> Any:
    """Runs its input."""
    return await _run(run, body)


@app.workflow(name="program", version="2", fails_on=(ChildError,))
async def program_2(run: Run, body: Any) -> Any:
    """The next version: it looks at its input first, and runs it as the old one does."""
    await _run(run, ["step", "a", 2])
    return await _run(run, body)


@app.workflow(timeout=timedelta(seconds=90))
async def hasty(run: Run, body: Any) -> Any:
    """The same, with a timeout of its own."""
    return await _run(run, body)


patched = App(NAMESPACE)


@patched.workflow(name="program", fails_on=(ChildError,))
async def program_patched(run: Run, body: Any) -> Any:
    """The first version with a change that only new runs see."""
    if run.patched("draws"):
        run.set_view({"drawn": run.random.randint(0, 9)})
        await _run(run, ["step", "b", 1])
    return await _run(run, body)


def _release(*chosen: tuple[App, str, str], latest: str) -> Definitions:
    definitions = [each.workflows[name, version].definition for each, name, version in chosen]
    return Definitions(definitions, {"program": latest, "hasty": "1"})


_HASTY = (app, "hasty", "1")
RELEASES = {
    "first": _release((app, "program", "1"), _HASTY, latest="1"),
    "second": _release((app, "program", "1"), (app, "program", "2"), _HASTY, latest="2"),
    "without the first": _release((app, "program", "2"), _HASTY, latest="2"),
    "patched": _release((patched, "program", "1"), (app, "program", "2"), _HASTY, latest="2"),
}
"""What is deployed one after the other, forward and back. The last one can go on with the runs of all others."""


LAPS = ["again", 3, ["step", "a", 1]]
"""Short executions, one after the other."""


def draw(rng: Random, depth: int = 3) -> Any:
    """A random program."""
    parts = [_part(rng, depth) for _ in range(rng.randint(2, 6))]
    body: Any = ["seq", *parts]
    return ["again", rng.randint(1, 2), body] if rng.random() < 0.15 else body


def _part(rng: Random, depth: int) -> Any:
    if depth == 0 or rng.random() < 0.4:
        return _leaf(rng)
    inner = [_part(rng, depth - 1) for _ in range(rng.randint(1, 3))]
    kind = rng.choice(["seq", "gather", "gather", "group", "race", "shield", "retrying", "finally", "timeout"])
    if kind == "timeout":
        return [kind, rng.choice([0.0, 0.5, 10.0, 30.0]), inner[0]]
    if kind in ("shield", "retrying"):
        return [kind, inner[0]]
    return [kind, *inner, _leaf(rng)] if kind == "finally" else [kind, *inner]


def _leaf(rng: Random) -> Any:
    kinds = ["step", "sleep", "signal", "child", "draw", "view", "map", "wide"]
    kind = rng.choices(kinds, [14, 3, 2, 1.5, 1, 1, 1, 0.12])[0]
    match kind:
        case "step":
            return [kind, rng.choice(tuple(STEPS)), rng.randint(0, 9)]
        case "sleep":
            return [kind, rng.choice([0.0, 0.05, 1.0, 20.0])]
        case "signal":
            return [kind, rng.choice(SIGNALS)]
        case "map":
            name, most, on_error = rng.choice("ad"), rng.choice([None, 1, 2]), rng.choice(["cancel", "collect"])
            return [kind, name, rng.randint(0, 4), most, on_error]
        case "child":
            return [kind, rng.random() < 0.2, rng.choice(["cancel", "terminate", "abandon"]), _part(rng, 1)]
        case "wide":
            return [kind, rng.choice("abd")]
    return [kind]


async def _run(run: Run, body: Any) -> Any:
    match body:
        case ["step", name, argument]:
            return await run.step(STEPS[name], argument)
        case ["sleep", seconds]:
            return await asyncio.sleep(seconds)
        case ["signal", name]:
            return await run.wait_signal(_signals[name])
        case ["seq", *parts]:
            return [await _run(run, part) for part in parts]
        case ["again", count, part]:
            result = await _run(run, part)
            return run.continue_as_new(["again", count - 1, part]) if count > 0 else result
        case [("draw" | "view" | "child" | "map" | "wide"), *_]:
            return await _special(run, body)
        case [("shield" | "retrying" | "finally" | "timeout"), *_]:
            return await _guarded(run, body)
    return await _together(run, body)


async def _special(run: Run, body: Any) -> Any:
    match body:
        case ["draw"]:
            return [run.random.randint(0, 9), str(run.uuid4()), run.now().isoformat()]
        case ["view"]:
            run.set_view({"drawn": run.random.randint(0, 9)})
            return None
        case ["map", name, count, most, on_error]:
            found = await run.map(STEPS[name], range(count), max_in_flight=most, on_error=on_error)
            return [each.type if isinstance(each, StepError) else each for each in found]
        case ["wide", name]:
            # More open nodes than an owner looks through for the next due time.
            naps = [asyncio.sleep(1 + number % 5 * 3) for number in range(_WIDE)]
            return len(await asyncio.gather(_run(run, ["step", name, 0]), *naps))
        case ["child", detach, parent_close, part]:
            try:
                return await run.child(program, part, detach=detach, parent_close=parent_close)
            except ChildError as error:
                return error.status
    raise AssertionError(body)


async def _guarded(run: Run, body: Any) -> Any:
    match body:
        case ["shield", part]:
            return await asyncio.shield(_run(run, part))
        case ["retrying", part]:
            try:
                return await _run(run, part)
            except StepError as error:
                return [error.type, await _run(run, part)]
        case ["timeout", seconds, part]:
            try:
                async with asyncio.timeout(seconds):
                    return await _run(run, part)
            except TimeoutError:
                return "timed out"
        case ["finally", *parts]:
            try:
                return await _run(run, parts[0])
            finally:
                await _run(run, ["seq", *parts[1:]])
    raise AssertionError(body)


async def _together(run: Run, body: Any) -> Any:
    match body:
        case ["gather", *parts]:
            return await asyncio.gather(*(_run(run, part) for part in parts))
        case ["group", *parts]:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(_run(run, part)) for part in parts]
            return [task.result() for task in tasks]
        case ["race", *parts]:
            racing = [asyncio.ensure_future(_run(run, part)) for part in parts]
            try:
                done, late = await asyncio.wait(racing, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in racing:
                    task.cancel()
                await asyncio.gather(*racing, return_exceptions=True)
            return [
                repr(task.exception() or task.result()) for task in racing if task in done and not task.cancelled()
            ] + [len(late)]
    raise AssertionError(body)
