"""What a declaration gives back: steps, signals, workflows and resources as objects that workflow and step code use.

They are built by ``definitions``; the engine sees only their ``definition``.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, Literal, ParamSpec, Protocol, TypedDict, TypeVar, cast

import msgspec

from ductor_stream.engine import values
from ductor_stream.engine.binding import Parameters
from ductor_stream.engine.definition import SignalDefinition, StepDefinition, WorkflowDefinition
from ductor_stream.errors import CalledOutsideStep

if TYPE_CHECKING:
    from datetime import timedelta
    from typing import Self, Unpack

    from ductor_stream.definitions.policy import Retry
    from ductor_stream.engine.planners.run import Run

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
In_contra = TypeVar("In_contra", contravariant=True)
Out = TypeVar("Out")
Item_contra = TypeVar("Item_contra", contravariant=True)
Result_co = TypeVar("Result_co", covariant=True)

Executor = Literal["thread", "process"]


class StepArguments(TypedDict, total=False):
    """How the attempts of a step are queued, timed and retried. Times are timedelta or seconds, None is no limit.

    ``timeout`` is start-to-close, counted from when the attempt begins to run; ``schedule_to_start`` bounds
    the time in the queue; ``schedule_to_close`` all attempts together; ``heartbeat`` the silence between the
    step's own ``heartbeat()`` calls (without it the worker beats by itself, and its death is noticed within 10 s).
    """

    queue: str
    timeout: timedelta | float
    retry: Retry
    schedule_to_start: timedelta | float | None
    schedule_to_close: timedelta | float | None
    heartbeat: timedelta | float | None


class Origin(msgspec.Struct, frozen=True):
    """Where something was declared."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


NOWHERE = Origin("?", 0)


class Resource(Generic[T]):
    """Something that steps need open: a pool, a client. Its worker opens it before the first poll, closes it after the drain.

    ``function`` is the async generator function that yields it once.
    """

    kind = "resource"

    def __init__(self, name: str, function: Callable[[], AsyncIterator[T]], origin: Origin) -> None:
        self.name = name
        self.function = function
        self.origin = origin


class Used(Generic[T]):
    """What ``Use(resource)`` leaves as the default of a parameter."""

    def __init__(self, resource: Resource[T]) -> None:
        self.resource = resource


def Use(resource: Resource[T]) -> T:
    """As the default of a step's keyword parameter: the worker passes the opened resource."""
    return cast(T, Used(resource))


class Step(Generic[P, R]):
    """A registered unit of user work. ``await run.step(it, …)`` runs it on its queue and gives its result.

    ``name`` is what the wire says; ``definition`` is what the engine sees (its options and how a call is
    bound); ``function`` is None for an external step; ``resources`` are what the worker passes, by parameter.
    """

    kind = "step"

    def __init__(
        self,
        definition: StepDefinition,
        parameters: Parameters,
        function: Callable[..., Any] | None = None,
        resources: Mapping[str, Resource[Any]] | None = None,
        executor: Executor | None = None,
        origin: Origin = NOWHERE,
    ) -> None:
        self.definition = definition
        self.parameters = parameters
        self.function = function
        self.resources = dict(resources or {})
        self.executor = executor
        self.origin = origin

    if TYPE_CHECKING:

        def _one_call(self, *args: P.args, **kwargs: P.kwargs) -> R:
            """What a call takes and gives, for type checkers alone: it is how they see that a step fits ``OfOneItem``."""

    @property
    def name(self) -> str:
        """The name on the wire."""
        return self.definition.name

    @property
    def is_async(self) -> bool:
        """Whether attempts run on the worker's loop; otherwise in a thread, or a process by ``executor``."""
        return False

    @property
    def own_heartbeat(self) -> bool:
        """Whether only the step's own ``heartbeat()`` calls count, and the worker does not beat by itself."""
        return self.definition.options.heartbeat_ms is not None

    def options(self, **changes: Unpack[StepArguments]) -> Self:
        """The same step with other options for one call: ``run.step(charge.options(retry=Retry(max_attempts=1)), order)``.

        Raises InvalidDefinition for an option that cannot be.
        """
        from ductor_stream.definitions.policy import changed_options

        options = changed_options(self.definition.options, f"step {self.name!r}", changes)
        twin = self.__class__.__new__(self.__class__)
        twin.__dict__.update(self.__dict__)
        twin.definition = msgspec.structs.replace(self.definition, options=options)
        return twin

    def decode_input(self, raw: bytes) -> list[Any]:
        """The arguments of a task (a JSON array), typed. Raises InvalidValue with the path to a field that does not fit."""
        return self.parameters.decode(raw)

    def encode_output(self, value: Any) -> bytes:
        """JSON of what the step returned. Raises InvalidValue when it does not fit the return annotation."""
        raw = values.encode(value, f"result of {self.name}")
        values.decode(raw, self.definition.output_type, f"result of {self.name}")
        return raw

    def invoke(self, arguments: Sequence[Any], resources: Mapping[str, Any]) -> Any:
        """Call the function with decoded arguments and opened resources (by parameter name).

        Gives the coroutine of an async step, the result of a plain one. For workers.
        """
        if self.function is None:
            raise CalledOutsideStep(f"step {self.name!r} is external: its worker is elsewhere")
        positional, named = self.parameters.call(arguments)
        return self.function(*positional, **named, **resources)

    def _called(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if _in_workflow():
            raise CalledOutsideStep(
                f"step {self.name!r} was called directly in a workflow, where it would run again at each replay: "
                f"write `await run.step({self.name}, …)`"
            )
        if missing := [parameter for parameter in self.resources if parameter not in kwargs]:
            raise TypeError(f"{self.name}() outside a worker needs {missing[0]}=…: only a worker opens resources")
        assert self.function is not None
        return self.function(*args, **kwargs)


class OfOneItem(Protocol[Item_contra, Result_co]):
    """A step that can be called with one argument, whatever others it has defaults for: what ``run.map`` takes."""

    def _one_call(self, item: Item_contra, /) -> Result_co: ...


class AsyncStep(Step[P, R]):
    """A step that is an ``async def``: its attempts run on the worker's loop."""

    @property
    def is_async(self) -> bool:
        return True

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R]:
        """Outside a workflow: the plain function. Inside one: raises CalledOutsideStep."""
        return cast(Coroutine[Any, Any, R], self._called(args, kwargs))


class PlainStep(Step[P, R]):
    """A step that is a plain function: its attempts run in a thread, or in a process with ``executor="process"``."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Outside a workflow: the plain function. Inside one: raises CalledOutsideStep."""
        return cast(R, self._called(args, kwargs))


class ExternalStep(Step[P, R]):
    """A step whose worker is elsewhere, in any language."""


class Signal(Generic[T]):
    """A named message to a run: ``await run.wait_signal(it)`` gives its payload, typed."""

    kind = "signal"

    def __init__(self, definition: SignalDefinition, origin: Origin = NOWHERE) -> None:
        self.definition = definition
        self.origin = origin

    @property
    def name(self) -> str:
        """The name on the wire."""
        return self.definition.name

    def encode(self, payload: T) -> bytes:
        """JSON of a payload. Raises InvalidValue with the path when it does not fit the signal's type."""
        return _fitting(payload, self.definition.payload_type, f"payload of {self.name}")


class Workflow(Generic[In_contra, Out]):
    """A durable function under a name and a version. One that takes any of several inputs does for one that takes one of them."""

    kind = "workflow"

    def __init__(self, definition: WorkflowDefinition, origin: Origin = NOWHERE) -> None:
        self.definition = definition
        self.origin = origin

    @property
    def name(self) -> str:
        """The name on the wire."""
        return self.definition.name

    @property
    def version(self) -> str:
        """The version that a run is pinned to when it starts on this function."""
        return self.definition.version

    def __call__(self, run: Run, *input: In_contra) -> Coroutine[Any, Any, Out]:
        """The plain function, for tests and for sharing code between workflows."""
        return cast(Coroutine[Any, Any, Out], self.definition.function(run, *input))

    def encode_input(self, input: Any) -> bytes:
        """JSON of an input. Raises InvalidValue with the path when it does not fit, or when there is none to take."""
        expected = self.definition.input_type if self.definition.takes_input else None
        return _fitting(input, expected, f"input of {self.name}")


def _fitting(value: Any, type: Any, name: str) -> bytes:
    raw = values.encode(value, name)
    values.decode(raw, type, name)
    return raw


def _in_workflow() -> bool:
    loop = asyncio._get_running_loop()
    if loop is None:
        return False
    from ductor_stream.engine.planners.loop import WorkflowLoop

    return isinstance(loop, WorkflowLoop)
