"""Errors on the wire <-> the engine's Failure, and the cutting of texts that people read."""

from __future__ import annotations

from msgspec import Raw

from ductor_stream.engine.events import AttemptOutcome, Failure
from ductor_stream.errors import DataError
from ductor_stream.protocol.limits import MAX_ID_BYTES, MAX_MESSAGE, MAX_PAYLOAD_BYTES, MAX_STACK
from ductor_stream.protocol.messages import WireError, carried
from ductor_stream.protocol.vocabulary import ERROR_CODES, REJECTION_CODES

_CUT = "\n[…]\n"


def clean(text: str | None, limit: int) -> str:
    """A text for people: cut, and without U+0000, which Postgres does not store as text."""
    if not text:
        return ""
    if len(text) <= limit and "\0" not in text:
        return text
    return text[:limit].replace("\0", "\ufffd")


def value_bytes(raw: Raw, field: str, limit: int = MAX_PAYLOAD_BYTES) -> bytes | None:
    """A user value as bytes of its own (not a view that keeps the record alive), None where it is missing."""
    found = bytes(raw)
    if len(found) > limit:
        raise DataError("oversized", f"{field} has {len(found):,} bytes, {limit:,} are the limit")
    return found or None


def failure_of(error: WireError | None, outcome: AttemptOutcome) -> Failure | None:
    """What went wrong, as the engine sees it. A failure that is not explained is still a failure."""
    if error is None:
        return None if outcome in ("completed", "cancelled") else _unexplained(outcome)
    code = error.code if error.code in ERROR_CODES else "user"
    return Failure(
        code=_rejection(code) if outcome == "rejected" else code or "user",
        type=clean(error.type, MAX_ID_BYTES) or "Unknown",
        message=clean(error.message, MAX_MESSAGE),
        retryable=error.retryable is not False,
        retry_after_ms=error.retry_after_ms,
        details=value_bytes(error.details, "error.details"),
        stack=_middle_cut(error.stack),
    )


def wire_error(failure: Failure) -> WireError:
    """The engine's failure as it stands on the wire, every limit kept."""
    return WireError(
        code=failure.code,
        type=clean(failure.type, MAX_ID_BYTES),
        message=clean(failure.message, MAX_MESSAGE),
        retryable=failure.retryable,
        retry_after_ms=failure.retry_after_ms,
        details=carried(failure.details),
        stack=_middle_cut(failure.stack),
    )


def _rejection(code: str | None) -> str:
    return code if code in REJECTION_CODES else "step_unknown"


def _unexplained(outcome: AttemptOutcome) -> Failure:
    code = "step_unknown" if outcome == "rejected" else "user"
    return Failure(code, "Unknown", f"the worker reported {outcome} and no error")


def _middle_cut(stack: str | None) -> str | None:
    """A stack tells the most at both of its ends."""
    if not stack:
        return None
    if len(stack) > MAX_STACK:
        half = (MAX_STACK - len(_CUT)) // 2
        stack = stack[:half] + _CUT + stack[-half:]
    return stack.replace("\0", "\ufffd")
