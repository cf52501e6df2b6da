"""JSON that is carried and not decoded: whether it is well-formed, and how deeply it is nested."""

from __future__ import annotations

import re

import msgspec
from msgspec import Raw

from ductor_stream.engine.nesting import nesting, too_deep

# A backslash takes the character after it along, so that an escaped backslash before "ud800" is no escape.
_ESCAPE = re.compile(
    rb"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(u[dD][89a-fA-F][0-9a-fA-F]{2})|.)", re.DOTALL
)
_document = msgspec.json.Decoder(Raw)

__all__ = ["document", "nesting", "too_deep", "without_lone_surrogates"]


def document(text: bytes, limit: int) -> Raw:
    """The text as a value to be carried. Raises ValueError when it is not one JSON document in UTF-8."""
    if too_deep(text, limit):
        raise ValueError(f"nested deeper than {limit}")
    text.decode()
    try:
        return _document.decode(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def without_lone_surrogates(text: bytes) -> bytes:
    """The text with U+FFFD for each escape that is half of a surrogate pair, which no UTF-8 can hold."""
    return _ESCAPE.sub(lambda found: rb"\ufffd" if found.group(1) else found.group(), text)
