"""Putting declarations together out of signatures and options."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from typing import Any

import msgspec

from ductor_stream.declarations import AsyncStep, Executor, ExternalStep, PlainStep, Resource, Signal, Step, Workflow
from ductor_stream.definitions.policy import changed_options, milliseconds, valid_name
from ductor_stream.definitions.signature import Subject, checked_type, digest_of, read_step, read_workflow
from ductor_stream.engine.binding import Parameter, Parameters
from ductor_stream.engine.definition import SignalDefinition, StepDefinition, StepOptions, WorkflowDefinition

NONE: Any = msgspec.UNSET
"""An external step without input."""


class WorkflowOptions(msgspec.Struct, frozen=True):
    """What ``@app.workflow(…)`` takes. ``timeout`` is timedelta or seconds for the whole run."""

    version: str = "1"
    timeout: Any = None
    fails_on: Iterable[type[BaseException]] = ()


def step(
    function: Callable[..., Any], subject: Subject, executor: Executor | None, options: Mapping[str, Any]
) -> Step[..., Any]:
    """A step out of its function. Raises InvalidDefinition."""
    found = read_step(function, subject)
    valid_name(subject.name, f"{subject}: its name")
    if executor not in (None, "thread", "process"):
        raise subject.refuse(f"executor is {executor!r}; it is 'thread' or 'process'")
    if executor is not None and found.is_async:
        raise subject.refuse("an async step runs on the worker's loop; executor= is for plain functions")
    if executor == "process" and found.resources:
        raise subject.refuse("a step in a process of its own cannot share resources: open what it needs in the step")
    definition = StepDefinition(
        subject.name, changed_options(StepOptions(), str(subject), options), found.parameters.bind, found.output
    )
    kind: type[Step[..., Any]] = AsyncStep if found.is_async else PlainStep
    return kind(definition, found.parameters, function, found.resources, executor, subject.origin)


def external_step(subject: Subject, input: Any, output: Any, options: Mapping[str, Any]) -> ExternalStep[..., Any]:
    """A step whose worker is elsewhere. Raises InvalidDefinition."""
    valid_name(subject.name, f"{subject}: its name")
    taken = [] if input is NONE else [Parameter("input", checked_type(input, "its input", subject))]
    parameters = Parameters(subject.name, taken)
    definition = StepDefinition(
        subject.name,
        changed_options(StepOptions(), str(subject), options),
        parameters.bind,
        checked_type(output, "its output", subject),
    )
    return ExternalStep(definition, parameters, origin=subject.origin)


def resource(function: Callable[[], AsyncIterator[Any]], subject: Subject) -> Resource[Any]:
    """A resource out of its async generator function. Raises InvalidDefinition."""
    if not inspect.isasyncgenfunction(function):
        raise subject.refuse("a resource is an `async def` that yields once (open, yield, close)")
    if any(p.default is p.empty for p in inspect.signature(function).parameters.values()):
        raise subject.refuse("a resource takes no parameters: read the configuration inside")
    return Resource(subject.name, function, subject.origin)


def workflow(function: Callable[..., Any], subject: Subject, options: WorkflowOptions) -> Workflow[Any, Any]:
    """A workflow out of its function. Raises InvalidDefinition."""
    found = read_workflow(function, subject)
    valid_name(subject.name, f"{subject}: its name")
    valid_name(options.version, f"{subject}: its version")
    classes = tuple(options.fails_on)
    for cls in classes:
        if not (isinstance(cls, type) and issubclass(cls, BaseException)):
            raise subject.refuse(f"fails_on takes exception classes, got {cls!r}")
    definition = WorkflowDefinition(
        name=subject.name,
        version=options.version,
        function=function,
        input_type=found.input,
        output_type=found.output,
        takes_input=found.takes_input,
        digest=digest_of(function),
        fails_on=classes,
        run_timeout_ms=None if options.timeout is None else milliseconds(options.timeout, f"{subject}: timeout"),
    )
    return Workflow(definition, subject.origin)


def signal(subject: Subject, type: Any) -> Signal[Any]:
    """A signal with the type of its payload. Raises InvalidDefinition."""
    valid_name(subject.name, f"{subject}: its name")
    return Signal(SignalDefinition(subject.name, checked_type(type, "its payload", subject)), subject.origin)
