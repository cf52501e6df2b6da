"""How a workflow function ended, and where in the user's code it stands."""

from __future__ import annotations

import asyncio
from types import CodeType, FrameType, TracebackType
from typing import Any

from ductor_stream.engine import values
from ductor_stream.engine.definition import WorkflowDefinition
from ductor_stream.engine.events import Failure
from ductor_stream.engine.state import ChildFailed, Failed, Parked
from ductor_stream.errors import ChildError, InvalidValue, StepCancelled, StepError, StepTimeout, TerminalError

_TIMEOUTS = frozenset(
    {
        "timeout_schedule_to_start",
        "timeout_start_to_close",
        "timeout_schedule_to_close",
        "heartbeat_lost",
        "worker_lost",
    }
)
_OURS = __file__[: __file__.rindex("engine")]
_STANDARD = (asyncio.__file__ or "").rpartition("asyncio")[0]
_INSTALLED = _STANDARD + "site-packages"
_PLANNER = _OURS + "engine/planners/"
_ENTRANCES = frozenset({"run_ready", "_hear"})
"""Functions of the planner through which workflow code is entered: further out stands whoever ticks the run."""

_SAID_CHARS = 16_384
"""An error's message: what the wire carries of one."""

_STACK_LINES = 40
"""Of a RecursionError there are a thousand, all alike; both ends tell the most."""


def is_user_code(code: CodeType) -> bool:
    """Whether a code object is neither this library's nor the standard library's."""
    name = code.co_filename
    return not name.startswith((_OURS, "<")) and (name.startswith(_INSTALLED) or not name.startswith(_STANDARD))


def user_line(frame: FrameType | None) -> str:
    """``file:line in function`` of the innermost workflow code from here outwards, or an empty string."""
    while frame is not None and not _is_entrance(frame.f_code):
        if is_user_code(frame.f_code):
            return f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name}"
        frame = frame.f_back
    return ""


def _is_entrance(code: CodeType) -> bool:
    return code.co_name in _ENTRANCES and code.co_filename.startswith(_PLANNER)


def first_line(function: Any) -> str:
    """``file:line in function`` where a function begins, or an empty string for what has no code of its own."""
    code = getattr(function, "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno} in {code.co_name}" if code is not None else ""


def where(task: Any) -> str:
    """``file:line in function`` where a suspended task waits in user code."""
    found = ""
    awaited = task.get_coro() if task is not None and not task.done() else None
    while awaited is not None:
        frame = getattr(awaited, "cr_frame", None) or getattr(awaited, "gi_frame", None)
        if frame is not None and is_user_code(frame.f_code):
            found = f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name}"
        awaited = getattr(awaited, "cr_await", None) or getattr(awaited, "gi_yieldfrom", None)
    return found


def ending(error: BaseException, definition: WorkflowDefinition) -> Failed | Parked:
    """What an exception that left the workflow function means: the run fails, or it is a bug and waits for other code."""
    failing = _failure(error, definition)
    if failing is not None:
        return Failed(failing)
    return bug(error, definition)


def bug(error: BaseException, definition: WorkflowDefinition) -> Parked:
    """The run waits for other code; ``error`` and its line say why."""
    # A StopIteration arrives as a RuntimeError that has no line of its own.
    lines = _user_stack(error.__traceback__) or (_user_stack(error.__cause__.__traceback__) if error.__cause__ else [])
    message = f"{type(error).__name__}: {said(error)}" + (f" (at {lines[-1]})" if lines else "")
    if len(lines) > _STACK_LINES:
        half = _STACK_LINES // 2
        lines[half:-half] = [f"… {len(lines) - 2 * half} more …"]
    return Parked("bug", message, definition.digest, "\n".join(lines))


def _failure(error: BaseException, definition: WorkflowDefinition) -> Failure | None:
    if isinstance(error, BaseExceptionGroup):
        found = [_failure(inner, definition) for inner in error.exceptions]
        if all(failure is not None for failure in found):
            return found[0]
    if isinstance(error, StepError):
        return _told(said(error.error_code), error.type, error.message, error.details)
    if isinstance(error, ChildError):
        return _told("child", error.type, error.message, error.details)
    if isinstance(error, TerminalError):
        return _told("user", error.type, error, error.details)
    if isinstance(error, (TimeoutError, *definition.fails_on)):
        return _told("user", type(error).__name__, error, None)
    return None


def _told(code: str, type: Any, message: Any, details: Any) -> Failure:
    return Failure(code, said(type), said(message), retryable=False, details=_json(details))


def said(error: Any) -> str:
    """The text of what a user raised, whatever that is: it can be written anywhere and has a bounded length."""
    try:
        return str(error)[:_SAID_CHARS].encode(errors="replace").decode()
    except Exception:  # noqa: BLE001 - a __str__ of the user's, which may raise anything
        return f"({type(error).__name__} that cannot be shown)"


def _json(details: Any) -> bytes | None:
    if details is None:
        return None
    try:
        return values.encode(details)
    except InvalidValue:
        return values.encode(said(details))


def _user_stack(traceback: TracebackType | None) -> list[str]:
    lines = []
    while traceback is not None:
        code = traceback.tb_frame.f_code
        if is_user_code(code):
            lines.append(f"{code.co_filename}:{traceback.tb_lineno} in {code.co_name}")
        traceback = traceback.tb_next
    return lines


def step_error(failure: Failure, attempts: int) -> StepError:
    """What workflow code catches when a step failed for good."""
    kind = StepError
    if failure.code in _TIMEOUTS:
        kind = StepTimeout
    elif failure.code == "cancelled":
        kind = StepCancelled
    details = _value(failure.details)
    return kind(failure.message, type=failure.type, error_code=failure.code, details=details, attempts=attempts)


def child_error(fact: ChildFailed) -> ChildError:
    """What workflow code catches when a child run ended without a result."""
    failure = fact.failure
    why = f": {failure.message}" if failure is not None and failure.message else ""
    details = _value(failure.details) if failure is not None else None
    message = f"child run {fact.child_run_id} {fact.status}{why}"
    kind = failure.type if failure is not None else ""
    return ChildError(message, run_id=fact.child_run_id, status=fact.status, type=kind, details=details)


def _value(details: bytes | None) -> Any:
    """Details as a value; what is no JSON, as the text that it is."""
    if not details:
        return None
    try:
        return values.decode(details, Any)
    except InvalidValue:
        return details.decode(errors="replace")
