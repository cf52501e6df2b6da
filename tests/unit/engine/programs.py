"""Random workflow programs, and a driver that answers them: the generators of the engine's property tests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
from hypothesis import strategies as st

from ductor_stream.engine import values
from ductor_stream.engine.definition import (
    RetryPolicy,
    SignalDefinition,
    StepDefinition,
    StepOptions,
    WorkflowDefinition,
)
from ductor_stream.engine.events import AttemptFinished, Failure, RunStarted, SignalReceived
from ductor_stream.engine.state import RunState
from ductor_stream.engine.tick import Stamped, Tick, due_events, tick, wake_at
from ductor_stream.errors import StepError


class Declared:
    """What ``Run.step`` and ``Run.wait_signal`` need of a declaration."""

    def __init__(self, definition: Any) -> None:
        self.definition = definition


def step(name: str, options: StepOptions | None = None) -> Declared:
    """A step that takes and gives any JSON."""
    definition = StepDefinition(name, options or StepOptions(), lambda args, kwargs: values.encode(list(args)), Any)
    return Declared(definition)


def signal(name: str) -> Declared:
    """A signal with any payload."""
    return Declared(SignalDefinition(name, Any))


def workflow(
    function: Callable[..., Any], *, digest: str = "d1", version: str = "1", **more: Any
) -> WorkflowDefinition:
    """A definition called ``wf`` without input."""
    return WorkflowDefinition("wf", version, function, None, Any, False, digest, **more)


STEPS = {name: step(name, StepOptions(retry=RetryPolicy(max_attempts=2, initial_ms=50))) for name in "abc"}
SIGNALS = {name: signal(name) for name in ("x", "y")}

# A program is nested tuples, so that hypothesis can shrink it.
_leaves = st.one_of(
    st.tuples(st.just("step"), st.sampled_from("abc"), st.integers(0, 5)),
    st.tuples(st.just("sleep"), st.sampled_from([0.0, 0.05, 1.0, 60.0])),
    st.tuples(st.just("signal"), st.sampled_from(["x", "y"])),
    st.tuples(st.just("draw")),
)
programs = st.recursive(
    _leaves,
    lambda inner: st.one_of(
        st.tuples(st.just("seq"), st.lists(inner, min_size=1, max_size=3)),
        st.tuples(st.just("gather"), st.lists(inner, min_size=1, max_size=4)),
        st.tuples(st.just("group"), st.lists(inner, min_size=1, max_size=3)),
        st.tuples(st.just("race"), st.lists(inner, min_size=1, max_size=3)),
        st.tuples(st.just("timeout"), st.sampled_from([0.0, 0.5, 30.0]), inner),
        st.tuples(st.just("shield"), inner),
        st.tuples(st.just("retrying"), inner),
        st.tuples(st.just("finally"), inner, inner),
    ),
    max_leaves=8,
)


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
        case ("draw",):
            return [run.random.randint(0, 9), str(run.uuid4()), run.now().isoformat()]
        case ("seq", parts):
            return [await _run(run, part) for part in parts]
        case _:
            return await _run_together(run, program)


async def _run_together(run: Any, program: Any) -> Any:
    match program:
        case ("gather", parts):
            return await asyncio.gather(*(_run(run, part) for part in parts))
        case ("group", parts):
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(_run(run, part)) for part in parts]
            return [task.result() for task in tasks]
        case ("race", parts):
            tasks = [asyncio.create_task(_run(run, part)) for part in parts]
            done, late = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)
            return [repr(task.exception() or task.result()) for task in done]
        case ("timeout", seconds, part):
            try:
                async with asyncio.timeout(seconds):
                    return await _run(run, part)
            except TimeoutError:
                return "timed out"
        case _:
            return await _run_guarded(run, program)


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


_living: list[Any] = []


@contextmanager
def abandoning() -> Iterator[None]:
    """Drop every coroutine that ticks inside the block gave, as an owner does: the collector must never find one."""
    try:
        yield
    finally:
        while _living:
            _living.pop().abandon()


def ticked(*args: Any, **kwargs: Any) -> Tick:
    """``tick``, its coroutine being dropped at the end of ``abandoning``."""
    done = tick(*args, **kwargs)
    if done.live is not None:
        _living.append(done.live)
    return done


class Driver:
    """Keeps a run's state between ticks as an owner does, and answers what it awaits."""

    def __init__(self, definition: WorkflowDefinition, *, run_id: str = "r") -> None:
        self.definitions = {(definition.name, definition.version): definition}
        self.run_id = run_id
        self.state: RunState | None = None
        self.live: Any = None
        self.records: list[Any] = []
        self.actions: list[Any] = []
        self.applied: list[Stamped] = []

    def apply(self, *events: Stamped) -> Tick:
        """One tick over these events."""
        history = [] if self.state is None else self.history()
        done = ticked(self.definitions, self.run_id, self.state, events, live=self.live, history=history)
        self.state, self.live = done.state, done.live
        self.records += done.records
        self.actions += done.actions
        self.applied += events
        return done

    def history(self) -> list[Any]:
        """Records of the current execution."""
        assert self.state is not None
        return [r for r in self.records if r.execution == self.state.header.execution]

    def lose(self) -> None:
        """The owner's cache is gone: nothing is left of the coroutine."""
        if self.live is not None:
            self.live.abandon()
        self.live = None

    def start(self, now: int = 1_000) -> Tick:
        """Start the run."""
        return self.apply(Stamped(now, RunStarted("wf", "1", b"null", "s1")))

    def finish(self, node_id: str, output: Any = None, *, now: int = 0, failure: Failure | None = None) -> Tick:
        """A worker's answer for a step node."""
        assert self.state is not None
        node = self.state.nodes[node_id]
        outcome = "failed" if failure else "completed"
        raw = None if failure else values.encode(output)
        event = AttemptFinished(self.state.header.execution, node_id, node.generation, outcome, raw, failure)
        return self.apply(Stamped(now or self.state.header.now + 1, event))

    def send(self, name: str, payload: Any, id: str, now: int = 0) -> Tick:
        """A signal."""
        assert self.state is not None
        return self.apply(Stamped(now or self.state.header.now + 1, SignalReceived(id, name, values.encode(payload))))

    def pass_time(self) -> None:
        """Go to the next due time and apply what is due."""
        assert self.state is not None
        at = wake_at(self.state)
        assert at is not None
        for event in due_events(self.state, at):
            self.apply(Stamped(at, event))

    def answer(self, choice: Callable[[int], int], limit: int = 60) -> None:
        """Answer whatever is open, by choices, until the run closes, waits for nothing that can come, or the limit."""
        for number in range(limit):
            assert self.state is not None
            if self.state.closed or self.state.header.status != "running":
                return
            options = self._options(number)
            if not options:
                return
            options[choice(len(options))]()

    def _options(self, number: int) -> list[Callable[[], Any]]:
        assert self.state is not None
        found: list[Callable[[], Any]] = []
        for node in list(self.state.nodes.values()):
            if node.kind == "step" and node.status == "dispatched":
                found.append(lambda i=node.node_id, n=number: self.finish(i, n))
                failure = Failure("user", "Oops", "no", retryable=number % 3 != 0)
                found.append(lambda i=node.node_id, f=failure: self.finish(i, failure=f))
            elif node.kind == "signal":
                found.append(lambda n=node.name, k=number: self.send(n, k, f"s{k}"))
        if wake_at(self.state) is not None:
            found.append(self.pass_time)
        return found


def events_only(records: list[Any]) -> list[bytes]:
    """Records in bytes, to compare."""
    return [msgspec.msgpack.encode(record) for record in records]
