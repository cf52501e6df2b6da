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
_ASYNCIO = (asyncio.__file__ or "").rpartition("__init__")[0]


def is_user_code(code: CodeType) -> bool:
    """Whether a code object is neither this library's nor asyncio's."""
    name = code.co_filename
    return not name.startswith((_OURS, _ASYNCIO, "<"))


def user_line(frame: FrameType | None) -> str:
    """``file:line in function`` of the innermost user frame from here outwards, or an empty string."""
    while frame is not None:
        if is_user_code(frame.f_code):
            return f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name}"
        frame = frame.f_back
    return ""


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
    lines = _user_stack(error.__traceback__)
    message = f"{type(error).__name__}: {error}" + (f" (at {lines[-1]})" if lines else "")
    return Parked("bug", message, definition.digest, "\n".join(lines))


def _failure(error: BaseException, definition: WorkflowDefinition) -> Failure | None:
    if isinstance(error, BaseExceptionGroup):
        found = [_failure(inner, definition) for inner in error.exceptions]
        return found[0] if found and all(f is not None for f in found) else None
    if isinstance(error, StepError):
        return Failure(error.error_code, error.type, error.message, retryable=False, details=_json(error.details))
    if isinstance(error, ChildError):
        return Failure("child", error.type, error.message, retryable=False, details=_json(error.details))
    if isinstance(error, TerminalError):
        return Failure("user", error.type, str(error), retryable=False, details=_json(error.details))
    if isinstance(error, TimeoutError | definition.fails_on):
        return Failure("user", type(error).__name__, str(error), retryable=False)
    return None


def _json(details: Any) -> bytes | None:
    if details is None:
        return None
    try:
        return values.encode(details)
    except InvalidValue:
        return values.encode(repr(details))


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
    details = values.decode(failure.details, Any) if failure.details else None
    return kind(failure.message, type=failure.type, error_code=failure.code, details=details, attempts=attempts)


def child_error(fact: ChildFailed) -> ChildError:
    """What workflow code catches when a child run ended without a result."""
    failure = fact.failure
    why = f": {failure.message}" if failure is not None and failure.message else ""
    details = values.decode(failure.details, Any) if failure is not None and failure.details else None
    message = f"child run {fact.child_run_id} {fact.status}{why}"
    kind = failure.type if failure is not None else ""
    return ChildError(message, run_id=fact.child_run_id, status=fact.status, type=kind, details=details)
