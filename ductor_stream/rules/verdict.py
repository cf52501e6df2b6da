"""What a rule has decided, and why: recorded as the output of its step, so that history can say it."""

from __future__ import annotations

from typing import Any, Generic, Literal, TypeVar

import msgspec

T = TypeVar("T")

HitPolicy = Literal["unique", "first", "collect"]
"""DMN's: ``unique``: at most one row may hit; ``first``: the first that hits decides; ``collect``: all that hit, a list."""

TAG = "ductor.verdict"
"""How a verdict is told from other outputs in a history that is read without its app."""


class Hit(msgspec.Struct, frozen=True):
    """A row that hit: its name, and its conditions by column."""

    row: str
    when: dict[str, str] = {}


class Verdict(msgspec.Struct, Generic[T], frozen=True, tag_field="type", tag=TAG):
    """A decision: of which rule, in which version, by which rows. ``value`` is what the workflow is given.

    ``digest`` names the content of the rule: other rows, other digest, whatever the version says. ``policy`` is a
    table's hit policy, ``expression`` for an expression, ``replaced`` where a test put a function in its place.
    """

    rule: str
    version: str
    digest: str
    policy: Literal["unique", "first", "collect", "expression", "replaced"]
    hits: list[Hit]
    value: T

    def why(self) -> str:
        """The decision in one sentence."""
        start = f"{self.rule} version {self.version}"
        if self.policy == "expression":
            return f"{start}: {self.hits[0].when['expression']}"
        if self.policy == "replaced":
            return f"{start}: replaced by the test"
        if not self.hits:
            return f"{start}: no row hit"
        return f"{start}: " + "; ".join(_row(hit) for hit in self.hits)


def _row(hit: Hit) -> str:
    told = ", ".join(f"{column}: {text}" for column, text in hit.when.items())
    return f"row {hit.row} hit ({told or 'no condition'})"


def find_verdict(output: bytes | None) -> Verdict[Any] | None:
    """The verdict that an attempt's output is, or None where it is another output."""
    if output is None or TAG.encode() not in output:
        return None
    try:
        return msgspec.json.decode(output, type=Verdict[Any])
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
