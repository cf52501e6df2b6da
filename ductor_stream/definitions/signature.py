"""Reading a function's signature and annotations: what crosses the wire, what is a resource, what is refused and why."""

from __future__ import annotations

import hashlib
import inspect
import typing
from collections.abc import Callable, Mapping
from pathlib import Path
from types import CodeType, FrameType, SimpleNamespace
from typing import Any

import msgspec

from ductor_stream.declarations import Origin, Resource, Used
from ductor_stream.engine import values
from ductor_stream.engine.binding import REQUIRED, Parameter, Parameters
from ductor_stream.errors import InvalidDefinition, InvalidValue


class Subject(msgspec.Struct, frozen=True):
    """What is being declared: for messages (``shop.py:12: step 'charge': …``) and for names in annotations.

    ``locals`` are the names around the declaration, so that classes defined in a function are found too.
    """

    kind: str
    name: str
    origin: Origin
    locals: Mapping[str, Any] = {}

    def __str__(self) -> str:
        return f"{self.origin}: {self.kind} {self.name!r}"

    def refuse(self, problem: str) -> InvalidDefinition:
        """The error to raise, with the place in front."""
        return InvalidDefinition(f"{self}: {problem}")


class StepSignature(msgspec.Struct, frozen=True):
    """What a step's function says about itself. ``output`` is the awaited type of an ``async def``."""

    parameters: Parameters
    resources: dict[str, Resource[Any]]
    output: Any
    is_async: bool


class WorkflowSignature(msgspec.Struct, frozen=True):
    """What a workflow's function says about itself."""

    takes_input: bool
    input: Any
    output: Any


def origin_of(function: Any) -> Origin:
    """Where a function is written: its file as Python knows it, and the line of its ``def`` or first decorator."""
    code = getattr(inspect.unwrap(function) if callable(function) else function, "__code__", None)
    return Origin(code.co_filename, code.co_firstlineno) if isinstance(code, CodeType) else Origin("?", 0)


def origin_of_caller(frame: FrameType | None) -> Origin:
    """Where a declaration stands that has no function."""
    return Origin(frame.f_code.co_filename, frame.f_lineno) if frame else Origin("?", 0)


def locals_around(frame: FrameType | None) -> Mapping[str, Any]:
    """Local names of the function in which a declaration stands; nothing at module level."""
    return {} if frame is None or frame.f_locals is frame.f_globals else dict(frame.f_locals)


def read_step(function: Callable[..., Any], subject: Subject) -> StepSignature:
    """Read a step's function. Raises InvalidDefinition for what cannot be a step."""
    if not inspect.isfunction(function):
        raise subject.refuse(f"a step is a function, not {function!r}; wrap it in one")
    if inspect.isasyncgenfunction(function) or inspect.isgeneratorfunction(function):
        raise subject.refuse(
            "a step returns one value; a generator cannot be one (is it a resource? use @app.resource)"
        )
    signature = inspect.signature(function)
    parameters: list[Parameter] = []
    resources: dict[str, Resource[Any]] = {}
    for found in signature.parameters.values():
        if isinstance(found.default, Used):
            resources[found.name] = _resource(found, subject)
        else:
            parameters.append(_parameter(function, found, subject))
    parameters.sort(key=lambda parameter: parameter.keyword_only)
    return StepSignature(
        Parameters(subject.name, parameters),
        resources,
        _wire_type(function, "the result", signature.return_annotation, subject),
        inspect.iscoroutinefunction(function),
    )


def _resource(found: inspect.Parameter, subject: Subject) -> Resource[Any]:
    used: Used[Any] = found.default
    if not isinstance(used.resource, Resource):
        raise subject.refuse(
            f"Use(…) of {found.name!r} takes a function declared with @app.resource, got {used.resource!r}"
        )
    if found.kind is not inspect.Parameter.KEYWORD_ONLY:
        raise subject.refuse(f"the resource {found.name!r} has to be keyword-only: put a `*` before it")
    return used.resource


def _parameter(function: Callable[..., Any], found: inspect.Parameter, subject: Subject) -> Parameter:
    if found.kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD):
        raise subject.refuse(f"{found} cannot cross the wire, where arguments are an array: pass a list or a dict")
    what = f"parameter {found.name!r}"
    type = _wire_type(function, what, found.annotation, subject)
    default: Any = REQUIRED
    if found.default is not inspect.Parameter.empty:
        default = found.default
        try:
            values.check(default, type, found.name)
        except InvalidValue as error:
            raise subject.refuse(f"the default of {found.name!r} does not fit its annotation: {error}") from error
    return Parameter(
        found.name,
        type,
        default,
        keyword_only=found.kind is inspect.Parameter.KEYWORD_ONLY,
        positional_only=found.kind is inspect.Parameter.POSITIONAL_ONLY,
    )


def read_workflow(function: Callable[..., Any], subject: Subject) -> WorkflowSignature:
    """Read a workflow's function. Raises InvalidDefinition for what cannot be a workflow."""
    if not inspect.isfunction(function) or not inspect.iscoroutinefunction(function):
        raise subject.refuse("a workflow is an `async def` function")
    signature = inspect.signature(function)
    found = list(signature.parameters.values())
    if any(p.kind not in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) for p in found) or not 1 <= len(found) <= 2:
        shape = f"async def {function.__name__}(run: Run, input: …)"
        raise subject.refuse(f"a workflow takes the run and at most one input: `{shape}`; put several into a dataclass")
    _check_first(function, found[0], subject)
    output = _wire_type(function, "the result", signature.return_annotation, subject)
    if len(found) == 1:
        return WorkflowSignature(False, None, output)
    input_type = _wire_type(function, f"the input {found[1].name!r}", found[1].annotation, subject)
    if found[1].default is not inspect.Parameter.empty:
        # A start without input gives null; another default would never be seen.
        if found[1].default is not None:
            raise subject.refuse(f"the input {found[1].name!r} has a default; only None can be one")
        try:
            values.check(None, input_type, found[1].name)
        except InvalidValue as error:
            raise subject.refuse(f"the input {found[1].name!r} defaults to None: write `… | None`") from error
    return WorkflowSignature(True, input_type, output)


def _check_first(function: Callable[..., Any], first: inspect.Parameter, subject: Subject) -> None:
    from ductor_stream.engine.planners.run import Run

    if first.annotation is inspect.Parameter.empty:
        return
    try:
        type = _resolved(function, first.annotation, subject)
    except NameError:
        # Run imported for type checkers only: nothing here needs it.
        return
    if type is not Run:
        raise subject.refuse(f"the first parameter is the run: `async def {function.__name__}(run: Run, …)`")


def _wire_type(function: Callable[..., Any], what: str, annotation: Any, subject: Subject) -> Any:
    if annotation is inspect.Parameter.empty:
        return Any
    try:
        type = _resolved(function, annotation, subject)
    except Exception as error:
        raise subject.refuse(
            f"the annotation of {what} cannot be resolved ({error}): import its names at module level, "
            "not only under TYPE_CHECKING"
        ) from error
    if type in (typing.NoReturn, typing.Never):
        return Any
    return checked_type(type, what, subject)


def checked_type(type: Any, what: str, subject: Subject) -> Any:
    """The type, unless it cannot cross the wire: then raises InvalidDefinition."""
    try:
        values.decoder_for(type)
    except InvalidValue as error:
        raise subject.refuse(f"{what}: {error}") from error
    return type


def _resolved(function: Callable[..., Any], annotation: Any, subject: Subject) -> Any:
    # One annotation at a time, so that only those that cross the wire have to be resolvable.
    holder = SimpleNamespace(__annotations__={"it": annotation})
    names = getattr(inspect.unwrap(function), "__globals__", {})
    return typing.get_type_hints(holder, names, dict(subject.locals), include_extras=True)["it"]


def digest_of(function: Callable[..., Any]) -> str:
    """Names the code of a workflow: its module's source and its own name there; other code, other digest.

    Code without a source file (typed into a shell) is named by its bytecode.
    """
    inner = inspect.unwrap(function)
    content = _source_digest(inner.__code__.co_filename) or _bytecode(inner.__code__)
    return hashlib.sha256(f"{content}\n{inner.__qualname__}".encode()).hexdigest()


def _source_digest(file: str) -> str | None:
    try:
        return hashlib.sha256(Path(file).read_bytes()).hexdigest()
    except OSError:
        return None


def _bytecode(code: CodeType) -> str:
    inner = [_constant(part) for part in code.co_consts]
    return hashlib.sha256(repr((code.co_code, inner, code.co_names, code.co_varnames)).encode()).hexdigest()


def _constant(part: object) -> str:
    if isinstance(part, CodeType):
        return _bytecode(part)
    # The members of a frozenset come in another order in each process.
    return repr(sorted(map(repr, part))) if isinstance(part, frozenset) else repr(part)
