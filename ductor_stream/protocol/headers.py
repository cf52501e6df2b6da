"""Headers of records: the version of the wire, and what is carried along from a start to its tasks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ductor_stream.errors import DataError
from ductor_stream.protocol.limits import MAX_CONTEXT_BYTES, MAX_CONTEXT_HEADERS

WIRE = "ductor-wire"
WIRE_VERSION = b"1"
TRACEPARENT = "traceparent"
CONTEXT_PREFIX = "ductor-ctx-"

REASON = "ductor-reason"
ERROR = "ductor-error"
SOURCE_TOPIC = "ductor-source-topic"
SOURCE_PARTITION = "ductor-source-partition"
SOURCE_OFFSET = "ductor-source-offset"
REFERENCE = "ductor-reference"
NULL_KEY = "ductor-null-key"
NULL_VALUE = "ductor-null-value"
CUT_KEY = "ductor-cut-key"

Headers = Sequence[tuple[str, bytes | None]]


def check_wire(headers: Headers) -> None:
    """Raise DataError when the record says that it is of a version of the wire that this release does not read."""
    for name, value in headers:
        if name == WIRE and value != WIRE_VERSION:
            raise DataError("unknown_wire", f"{WIRE} is {(value or b'')[:20]!r}, this release reads 1")


def context_of(headers: Headers) -> dict[str, str]:
    """What is carried along: ``traceparent`` and ``ductor-ctx-*``. What is no text is left behind.

    Raises DataError when there is more than the contract allows.
    """
    context: dict[str, str] = {}
    for name, value in headers:
        if value is None or not (name == TRACEPARENT or name.startswith(CONTEXT_PREFIX)) or not name.isascii():
            continue
        try:
            context[name] = value.decode()
        except UnicodeDecodeError:
            continue  # a broken trace is no reason to refuse a run
    if context and (len(context) > MAX_CONTEXT_HEADERS or _size(context) > MAX_CONTEXT_BYTES):
        raise DataError(
            "invalid_field",
            f"headers to carry along: at most {MAX_CONTEXT_HEADERS} of {MAX_CONTEXT_BYTES:,} bytes together",
        )
    return context


def _size(context: Mapping[str, str]) -> int:
    return sum(len(name) + len(value.encode()) for name, value in context.items())


def wire_headers(context: Mapping[str, str] | None = None) -> list[tuple[str, bytes]]:
    """The headers of a record of ours, with what is carried along."""
    headers = [(WIRE, WIRE_VERSION)]
    if context:
        headers.extend((name, value.encode()) for name, value in context.items())
    return headers


def text(headers: Iterable[tuple[str, bytes | None]], name: str) -> str | None:
    """The last header of that name as text, or None."""
    found = None
    for each, value in headers:
        if each == name and value is not None:
            found = value.decode("utf-8", "replace")
    return found
