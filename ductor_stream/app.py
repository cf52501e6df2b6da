"""``App`` and its decorators: what users declare, under one namespace.

Everything here happens at import; a mistake raises InvalidDefinition with the file, the line and the remedy.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from typing import TYPE_CHECKING, Any, ParamSpec, Protocol, TypeVar, overload

from ductor_stream import app_work
from ductor_stream.declarations import (
    AsyncStep,
    Executor,
    ExternalStep,
    PlainStep,
    Resource,
    Signal,
    Step,
    StepArguments,
    Workflow,
)
from ductor_stream.definitions import build
from ductor_stream.definitions.signature import Subject, locals_around, origin_of, origin_of_caller
from ductor_stream.errors import InvalidConfig, InvalidDefinition
from ductor_stream.protocol.topics import Topics
from ductor_stream.work import Connector

if TYPE_CHECKING:
    from datetime import timedelta
    from typing import Unpack

    from ductor_stream.config import Settings
    from ductor_stream.engine.planners.run import Run

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
In = TypeVar("In")
Out = TypeVar("Out")


class StepDecorator(Protocol):
    """What ``@app.step(…)`` gives: it keeps the parameters and the result, awaited for an ``async def``."""

    @overload
    def __call__(  # type: ignore[overload-overlap]  # an async def is a callable too; the first form wins
        self, function: Callable[P, Coroutine[Any, Any, R]], /
    ) -> AsyncStep[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> PlainStep[P, R]: ...


class WorkflowDecorator(Protocol):
    """What ``@app.workflow(…)`` gives: it keeps the input (None where there is none) and the result."""

    @overload
    def __call__(self, function: Callable[[Run, In], Coroutine[Any, Any, Out]], /) -> Workflow[In, Out]: ...
    @overload
    def __call__(self, function: Callable[[Run], Coroutine[Any, Any, Out]], /) -> Workflow[None, Out]: ...


class App(app_work.DeclaresWork):
    """The declarations of one namespace: its steps, workflows, signals and resources.

    ``namespace`` names the topics (``ductor.<namespace>.*``), the groups and the rows; 1 to 64 characters,
    without a dot; ``DUCTOR_NAMESPACE`` overrides it. Raises InvalidDefinition.
    """

    def __init__(self, namespace: str) -> None:
        try:
            Topics(namespace)
        except (InvalidConfig, TypeError) as error:
            raise InvalidDefinition(f"{origin_of_caller(_caller())}: {error}; the namespace has no dot") from error
        self.namespace = namespace
        self.steps: dict[str, Step[..., Any]] = {}
        self.workflows: dict[tuple[str, str], Workflow[Any, Any]] = {}
        self.signals: dict[str, Signal[Any]] = {}
        self.resources: dict[str, Resource[Any]] = {}

    # -- steps ------------------------------------------------------------------------------

    @overload
    def step(  # type: ignore[overload-overlap]  # an async def is a callable too; the first form wins
        self, function: Callable[P, Coroutine[Any, Any, R]], /
    ) -> AsyncStep[P, R]: ...
    @overload
    def step(self, function: Callable[P, R], /) -> PlainStep[P, R]: ...
    @overload
    def step(
        self,
        function: None = None,
        /,
        *,
        name: str | None = None,
        executor: Executor | None = None,
        **options: Unpack[StepArguments],
    ) -> StepDecorator: ...
    def step(
        self,
        function: Callable[..., Any] | None = None,
        /,
        *,
        name: str | None = None,
        executor: Executor | None = None,
        **options: Any,
    ) -> Any:
        """Declare a step; ``@app.step`` and ``@app.step()`` are the same.

        Its ``name`` on the wire is the function's unless given. Options and their units: ``StepArguments``;
        by default queue ``default``, ten attempts, 10 minutes each. Plain functions run in a thread, or in
        a process of their own with ``executor="process"``. Delivery: a step runs at least once, and carries
        an idempotency key that is the same on every try.
        """

        def declare(function: Callable[..., Any]) -> Any:
            subject = _subject("step", name, function)
            step = build.step(function, subject, executor, options)
            self._add(self.steps, step.name, step)
            return step

        return declare if function is None else declare(function)

    @overload
    def external_step(
        self, name: str, *, input: type[In], output: type[Out], **options: Unpack[StepArguments]
    ) -> ExternalStep[[In], Out]: ...
    @overload
    def external_step(
        self, name: str, *, output: type[Out], **options: Unpack[StepArguments]
    ) -> ExternalStep[[], Out]: ...
    @overload
    def external_step(
        self, name: str, *, input: Any = ..., output: Any = ..., **options: Unpack[StepArguments]
    ) -> ExternalStep[..., Any]: ...
    def external_step(self, name: str, *, input: Any = build.NONE, output: Any = None, **options: Any) -> Any:
        """Declare a step whose worker is elsewhere, in any language: its one input, or none, and its output."""
        subject = _here("step", name)
        step = build.external_step(subject, input, output, options)
        self._add(self.steps, step.name, step)
        return step

    def resource(self, function: Callable[[], AsyncIterator[T]], /) -> Resource[T]:
        """Declare something that steps need open: an async generator function that yields it once.

        A worker opens it before its first poll and closes it after the drain.
        """
        subject = _subject("resource", None, function)
        resource = build.resource(function, subject)
        self._add(self.resources, resource.name, resource)
        return resource

    # -- workflows and signals --------------------------------------------------------------

    @overload
    def workflow(self, function: Callable[[Run, In], Coroutine[Any, Any, Out]], /) -> Workflow[In, Out]: ...
    @overload
    def workflow(self, function: Callable[[Run], Coroutine[Any, Any, Out]], /) -> Workflow[None, Out]: ...
    @overload
    def workflow(
        self,
        function: None = None,
        /,
        *,
        version: str = "1",
        name: str | None = None,
        timeout: timedelta | float | None = None,
        fails_on: Iterable[type[BaseException]] = (),
    ) -> WorkflowDecorator: ...
    def workflow(
        self,
        function: Callable[..., Any] | None = None,
        /,
        *,
        version: str = "1",
        name: str | None = None,
        timeout: timedelta | float | None = None,
        fails_on: Iterable[type[BaseException]] = (),
    ) -> Any:
        """Declare a workflow: an ``async def`` that takes the run and one input, or none.

        Several functions may be declared under one name with different versions; a run stays on the version
        it started on, and the last one declared is the default. ``timeout`` bounds the whole run (timedelta
        or seconds). An exception of a class in ``fails_on`` fails the run; others that are bugs suspend it.
        """

        def declare(function: Callable[..., Any]) -> Any:
            subject = _subject("workflow", name, function)
            workflow = build.workflow(function, subject, build.WorkflowOptions(version, timeout, fails_on))
            self._add(self.workflows, (workflow.name, workflow.version), workflow)
            return workflow

        return declare if function is None else declare(function)

    @overload
    def signal(self, name: str, type: type[T]) -> Signal[T]: ...
    @overload
    def signal(self, name: str, type: Any) -> Signal[Any]: ...
    def signal(self, name: str, type: Any) -> Any:
        """Declare a signal and the type of its payload."""
        signal = build.signal(_here("signal", name), type)
        self._add(self.signals, signal.name, signal)
        return signal

    # -- as a whole -------------------------------------------------------------------------

    def include(self, other: App) -> None:
        """Take over what another module has declared so far; it runs under this app's namespace.

        Raises InvalidDefinition where both declare the same name; then nothing is taken over.
        """
        if not isinstance(other, App):
            raise InvalidDefinition(f"include takes an App, got {other!r}")
        pairs: list[tuple[dict[Any, Any], dict[Any, Any]]] = [
            (self.steps, other.steps),
            (self.workflows, other.workflows),
            (self.signals, other.signals),
            (self.resources, other.resources),
        ]
        for mine, theirs in pairs:
            for key, declared in theirs.items():
                _refuse_second(mine, key, declared)
        for mine, theirs in pairs:
            mine.update(theirs)

    def default_version(self, name: str) -> str:
        """The version that a start without one gets: the last declared. Raises KeyError for an unknown workflow."""
        found = [version for known, version in self.workflows if known == name]
        if not found:
            raise KeyError(name)
        return found[-1]

    def queues(self, *, external: bool = True) -> tuple[str, ...]:
        """Queues of the declared steps, sorted; without ``external`` only of those that a worker of this app runs."""
        steps = (each for each in self.steps.values() if external or each.function or isinstance(each, Connector))
        return tuple(sorted({step.definition.options.queue for step in steps}))

    async def serve(
        self, settings: Settings | None = None, *, queues: Iterable[str] | None = None, concurrency: int = 20
    ) -> None:
        """Run a coordinator and a worker in this process until cancelled, then drain: ``asyncio.create_task(app.serve())``.

        ``settings`` None reads environment and file; ``queues`` limits what is executed here, ``concurrency`` is
        attempts at a time and queue. Raises InvalidConfig, SchemaMismatch, TopicsNotReady, StoreUnavailable,
        LogUnavailable.
        """
        # The drivers are needed by processes that serve, not by those that declare.
        from ductor_stream.config import load
        from ductor_stream.wiring.embedded import serve

        wanted = tuple(queues) if queues is not None else self.queues(external=False)
        await serve(self, settings if settings is not None else load(), wanted, concurrency)

    def _declared(self, step: Step[..., Any]) -> None:
        self._add(self.steps, step.name, step)

    def _here(self, kind: str, name: str) -> Subject:
        return _here(kind, name)

    def _add(self, declared: dict[Any, Any], key: Any, thing: Any) -> None:
        _refuse_second(declared, key, thing)
        declared[key] = thing


def _refuse_second(declared: dict[Any, Any], key: Any, thing: Any) -> None:
    first = declared.get(key)
    if first is None or first is thing:
        return
    named = f"{key[0]!r} version {key[1]!r}" if isinstance(key, tuple) else repr(key)
    remedy = "give one another version" if isinstance(key, tuple) else "give one of them another name"
    raise InvalidDefinition(f"{thing.origin}: {thing.kind} {named} is declared already at {first.origin}; {remedy}")


def _subject(kind: str, name: str | None, function: Any) -> Subject:
    known = name or str(getattr(function, "__name__", repr(function)))
    return Subject(kind, known, origin_of(function), locals_around(_caller()))


def _here(kind: str, name: str) -> Subject:
    caller = _caller()
    return Subject(kind, name, origin_of_caller(caller), locals_around(caller))


def _caller() -> Any:
    """The nearest frame outside this module and its other half: the user's."""
    frame = inspect.currentframe()
    while frame is not None and (frame.f_globals is globals() or frame.f_globals is vars(app_work)):
        frame = frame.f_back
    return frame
