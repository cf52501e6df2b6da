"""JSON that is carried and not decoded: whether it is well-formed, and how deeply it is nested."""

from __future__ import annotations

import itertools
import re

import msgspec
from msgspec import Raw

# The closing quote is optional, so that a match never fails: else one string without an end, full of escaped quotes,
# would be tried again from each of them, which takes hours for a megabyte.
_STRING = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"?', re.DOTALL)
_STEP = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}
_NOT_BRACKETS = bytes(c for c in range(256) if c not in _STEP)
# A backslash takes the character after it along, so that an escaped backslash before "ud800" is no escape.
_ESCAPE = re.compile(
    rb"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(u[dD][89a-fA-F][0-9a-fA-F]{2})|.)", re.DOTALL
)
_document = msgspec.json.Decoder(Raw)


def nesting(text: bytes) -> int:
    """How many arrays and objects stand within each other at the deepest place (of what may be no JSON at all)."""
    brackets = _STRING.sub(b"", text).translate(None, _NOT_BRACKETS)
    return max(itertools.accumulate(map(_STEP.__getitem__, brackets), initial=0))


def too_deep(text: bytes, limit: int) -> bool:
    """Whether arrays and objects are nested deeper than ``limit``. Costs nothing for short texts."""
    if len(text) <= 2 * limit or text.count(b"[") + text.count(b"{") <= limit:
        return False
    return nesting(text) > limit


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
