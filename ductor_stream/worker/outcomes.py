"""How an attempt ended, in the words of the wire: what a step returned or raised becomes an outcome."""

from __future__ import annotations

import asyncio
import math
import traceback
from pathlib import Path
from typing import Any

import msgspec

from ductor_stream.engine import values
from ductor_stream.engine.events import AttemptOutcome, Failure
from ductor_stream.errors import InvalidValue, RetryableError, StepCancelled, TerminalError
from ductor_stream.protocol.json_text import too_deep
from ductor_stream.protocol.limits import MAX_DURATION_MS, MAX_MESSAGE, MAX_NAME, MAX_NESTING, MAX_PAYLOAD_BYTES
from ductor_stream.protocol.worker import Task
from ductor_stream.worker.steps import RegisteredStep

_OUR_FRAMES = (str(Path(__file__).parent), str(Path(asyncio.__file__).parent), str(Path(values.__file__).parents[1]))
"""Folders whose frames at the head of a stack say nothing about the user's code."""

_DEEPEST = MAX_NESTING - 2
"""What a user value may be nested: it stands in a record, details also in an error."""


class Interrupted(asyncio.CancelledError):
    """The attempt was interrupted before its code began."""


class Outcome(msgspec.Struct, frozen=True):
    """What is reported: ``output`` is JSON where the attempt completed, ``failure`` says why it did not."""

    word: AttemptOutcome
    output: bytes | None = None
    failure: Failure | None = None


def returned(step: RegisteredStep, value: Any) -> Outcome:
    """The step returned: completed, unless the value cannot be sent."""
    try:
        output = step.encode_output(value)
    except Exception as error:  # noqa: BLE001 (said below)
        # Whatever the user's value does while it is written is the value's fault.
        message = _text(error) if isinstance(error, InvalidValue) else f"result of {step.name}: {_text(error)}"
        return _refused("output_not_encodable", "OutputNotEncodable", message)
    if too_deep(output, _DEEPEST):
        message = f"result of {step.name}: nested deeper than {_DEEPEST}"
        return _refused("output_not_encodable", "OutputNotEncodable", message)
    if len(output) > MAX_PAYLOAD_BYTES:
        message = (
            f"result of {step.name}: {len(output):,} bytes as JSON, the limit is {MAX_PAYLOAD_BYTES:,}; "
            "return a reference to where it is stored"
        )
        return _refused("output_too_large", "OutputTooLarge", message)
    return Outcome("completed", output)


def raised(error: BaseException) -> Outcome:
    """The step raised: failed, by the rules of the two exceptions that say more, else as the policy has it."""
    details: bytes | None = None
    message = _text(error)
    if isinstance(error, (TerminalError, RetryableError)) and error.details is not None:
        try:
            details = _details(error.details)
        except InvalidValue as wrong:
            message = f"{message} (its details were left out: {_text(wrong)})"
    known = isinstance(error, (TerminalError, RetryableError))
    failure = Failure(
        code="user",
        type=_sane(str(error.type) if known else type(error).__name__)[:MAX_NAME] or "Unknown",  # type: ignore[attr-defined]
        message=message,
        retryable=not isinstance(error, TerminalError),
        retry_after_ms=_milliseconds(error.retry_after) if isinstance(error, RetryableError) else None,
        details=details,
        stack=user_stack(error),
    )
    return Outcome("failed", failure=failure)


def overdue(task: Task, *, still_runs: bool = False) -> Outcome:
    """The attempt ran longer than it may."""
    message = f"step {task.step} ran longer than its timeout of {(task.start_to_close_ms or 0) / 1000:g} s"
    if still_runs:
        message += "; it does not end, and holds its slot in the worker"
    return Outcome("failed", failure=Failure("timeout_start_to_close", "StepTimeout", message))


def workers_lost(task: Task, losses: int) -> Outcome:
    """Whoever ran the task was lost. The policy decides about another attempt."""
    message = (
        f"step {task.step}: {losses} workers were lost while they ran this attempt; look for what ends the process"
        " (out of memory, a crash of a C library, os._exit), or give the step executor='process'"
    )
    return Outcome("failed", failure=Failure("worker_lost", "StepTimeout", message))


def not_taken(task: Task, error: str) -> Outcome:
    """The broker refuses the result, too large for its topic most likely."""
    return _refused("output_too_large", "OutputTooLarge", f"result of {task.step}: the broker refuses it: {error}")


def cancelled(reason: str) -> Outcome:
    """The attempt ended because it was asked to stop."""
    return Outcome("cancelled", failure=Failure("cancelled", "StepCancelled", _sane(reason), retryable=False))


def is_cancellation(error: BaseException) -> bool:
    """Whether a step that was asked to stop says by this that it did."""
    return isinstance(error, (asyncio.CancelledError, StepCancelled))


def rejected(code: str, message: str) -> Outcome:
    """This worker cannot run the task, another may: the attempt does not count."""
    type_name = "".join(word.capitalize() for word in code.split("_"))
    return Outcome("rejected", failure=Failure(code, type_name, _sane(message)))


def user_stack(error: BaseException) -> str | None:
    """The traceback without the worker's own frames at its head; None when it cannot be written."""
    try:
        summary = traceback.TracebackException.from_exception(error)
        _drop_our_head(summary, set())
        return _sane("".join(summary.format()))
    except Exception:  # noqa: BLE001 (said below)
        # A source file that changed, a lazy __repr__ that fails: a failure is reported without its stack then.
        return None


def _drop_our_head(summary: traceback.TracebackException, seen: set[int]) -> None:
    if id(summary) in seen:
        return
    seen.add(id(summary))
    frames = list(summary.stack)
    first = next((n for n, frame in enumerate(frames) if not frame.filename.startswith(_OUR_FRAMES)), 0)
    summary.stack = traceback.StackSummary.from_list(frames[first:])
    for cause in (summary.__cause__, summary.__context__, *(summary.exceptions or ())):
        if cause is not None:
            _drop_our_head(cause, seen)


def _refused(code: str, type_name: str, message: str) -> Outcome:
    # Not worth another try: the same code would return the same again.
    return Outcome("failed", failure=Failure(code, type_name, _sane(message)[:MAX_MESSAGE], retryable=False))


def _details(found: Any) -> bytes:
    raw = values.encode(found, "details")
    if len(raw) > MAX_PAYLOAD_BYTES:
        raise InvalidValue(f"details: {len(raw):,} bytes as JSON, the limit is {MAX_PAYLOAD_BYTES:,}")
    if too_deep(raw, _DEEPEST):
        raise InvalidValue(f"details: nested deeper than {_DEEPEST}")
    return raw


def _milliseconds(seconds: float | None) -> int | None:
    """Within what the wire carries: a result that says more would be refused, and lost with all else that it says."""
    if seconds is None or (isinstance(seconds, float) and not math.isfinite(seconds)):
        return None
    return math.ceil(min(max(seconds, 0), MAX_DURATION_MS / 1000) * 1000)


def _text(error: BaseException) -> str:
    try:
        return _sane(str(error))[:MAX_MESSAGE]
    except Exception:  # noqa: BLE001 (a user's __str__ may do anything)
        return f"<{type(error).__name__} whose message cannot be written>"


def _sane(text: str) -> str:
    """Without what JSON or a database would choke on: lone surrogates and U+0000."""
    return text.encode("utf-8", "backslashreplace").decode().replace("\0", "\\x00")
