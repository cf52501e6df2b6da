"""How deeply JSON text is nested, without decoding it."""

from __future__ import annotations

import itertools
import re

# The closing quote is optional, so that a match never fails: else one string without an end, full of escaped quotes,
# would be tried again from each of them, which takes hours for a megabyte.
_STRING = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"?', re.DOTALL)
_STEP = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}
_NOT_BRACKETS = bytes(c for c in range(256) if c not in _STEP)


def nesting(text: bytes) -> int:
    """How many arrays and objects stand within each other at the deepest place (of what may be no JSON at all)."""
    brackets = _STRING.sub(b"", text).translate(None, _NOT_BRACKETS)
    return max(itertools.accumulate(map(_STEP.__getitem__, brackets), initial=0))


def too_deep(text: bytes, limit: int) -> bool:
    """Whether arrays and objects are nested deeper than ``limit``. Costs nothing for short texts."""
    if len(text) <= 2 * limit or text.count(b"[") + text.count(b"{") <= limit:
        return False
    return nesting(text) > limit
