"""Which offsets of one partition are taken and which are done: pure bookkeeping (protocol 27).

A worker takes tasks in the order of the log and finishes them in any order. Committed is the lowest
offset that is not done; what is done above it, behind a slow attempt, rides in the commit's metadata in
run-length form, so that nobody runs it again after a restart or a rebalance. So does how many workers were lost
under what is not done (``worker.losses``).
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from operator import itemgetter

METADATA_LIMIT = 4_096
"""Bytes of metadata that a broker takes with a commit (``offset.metadata.max.bytes``)."""

_FEW_RUNS, _SHORT_SPAN = 500, 1 << 20
"""So many runs always fit: two numbers each, below 2**20 at most four digits, 4,001 bytes in all."""

_VERSION = "1"
_LOSSES_FOLLOW = "."
_DIGITS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
_VALUE_OF = {digit: value for value, digit in enumerate(_DIGITS)}

Run = tuple[int, int]
"""Offsets that are done: from the first one up to, and not with, the second one."""

Losses = tuple[int, int, int]
"""How many workers were lost under what is not done of these offsets: from, up to and not with, number."""


def encode_runs(base: int, runs: Iterable[Run], limit: int = METADATA_LIMIT) -> str:
    """Runs of done offsets above ``base`` as ASCII: a version, then gap and length of each in base 32.

    What would not fit into ``limit`` is left out from the end: those would merely be run again.
    """
    parts: list[str] = []
    size, at = len(_VERSION), base
    for start, end in runs:
        part = _encode_number(start - at) + _encode_number(end - start)
        size += len(part)
        if size > limit:
            break
        parts.append(part)
        at = end
    return _VERSION + "".join(parts) if parts else ""


def decode_runs(base: int, metadata: str) -> list[Run]:
    """The runs that ``encode_runs`` wrote; nothing when the text is not ours, or damaged: that is always safe."""
    if not metadata.startswith(_VERSION):
        return []
    numbers = _decode_numbers(metadata[len(_VERSION) :].partition(_LOSSES_FOLLOW)[0])
    if numbers is None or len(numbers) % 2 or 0 in numbers:
        return []
    runs: list[Run] = []
    at = base
    for gap, length in zip(numbers[::2], numbers[1::2], strict=True):
        runs.append((at + gap, at + gap + length))
        at += gap + length
    return runs


def encode_losses(base: int, losses: Iterable[Losses], limit: int = METADATA_LIMIT) -> str:
    """Losses from ``base`` on as ASCII, to stand behind the runs: gap, length and number of each stretch.

    What would not fit into ``limit`` is left out from the end: it counts as begun for the first time.
    """
    parts: list[str] = []
    size, at = len(_LOSSES_FOLLOW), base
    for start, end, number in losses:
        part = _encode_number(start - at) + _encode_number(end - start) + _encode_number(number)
        size += len(part)
        if size > limit:
            break
        parts.append(part)
        at = end
    return _LOSSES_FOLLOW + "".join(parts) if parts else ""


def decode_losses(base: int, metadata: str) -> list[Losses]:
    """What ``encode_losses`` wrote; nothing when the text is not ours, or damaged: that is always safe."""
    if not metadata.startswith(_VERSION):
        return []
    numbers = _decode_numbers(metadata.partition(_LOSSES_FOLLOW)[2])
    if numbers is None or len(numbers) % 3:
        return []
    losses: list[Losses] = []
    at = base
    for gap, length, number in zip(numbers[::3], numbers[1::3], numbers[2::3], strict=True):
        losses.append((at + gap, at + gap + length, number))
        at += gap + length
    return losses


class Window:
    """The offsets of one partition from the lowest that is not done to the last that was taken.

    Offsets that hold no record (markers, compacted records) count as done when the log jumps over them.
    """

    def __init__(self, position: int, done: Iterable[Run] = (), losses: Sequence[Losses] = ()) -> None:
        self.base = position
        """The offset to commit: everything below it is done."""
        self.position = position
        """One beyond the last offset that was read."""
        self.losses = losses
        """As the partition was taken over."""
        self._outstanding: set[int] = set()
        self._starts: list[int] = []
        self._ends: list[int] = []
        for start, end in done:
            self._add(start, end)

    @classmethod
    def opened(cls, position: int, metadata: str) -> Window:
        """The window of a partition as the last commit left it."""
        return cls(position, decode_runs(position, metadata), decode_losses(position, metadata))

    @property
    def outstanding(self) -> int:
        """How many offsets are taken and not done."""
        return len(self._outstanding)

    @property
    def runs(self) -> list[Run]:
        """What is done above ``base``."""
        return list(zip(self._starts, self._ends, strict=True))

    def is_rewind(self, offset: int) -> bool:
        """Whether the log went back, as after its topic was created anew: this window says nothing about it."""
        return offset < self.position

    def take(self, offset: int) -> bool:
        """The record at ``offset`` was read. False when it was done before and is not to be run again."""
        if offset > self.position:
            self._add(self.position, offset)
        self.position = offset + 1
        if self.is_done(offset):
            return False
        self._outstanding.add(offset)
        return True

    def is_done(self, offset: int) -> bool:
        """Whether the offset needs no more work."""
        if offset < self.base:
            return True
        place = bisect_right(self._starts, offset) - 1
        return place >= 0 and offset < self._ends[place]

    def finish(self, offset: int) -> None:
        """The result of a taken offset is acknowledged (or its task is in dead letters). Again does nothing."""
        if offset in self._outstanding:
            self._outstanding.remove(offset)
            self._add(offset, offset + 1)

    def metadata(self, *, handed_over: bool = False) -> str:
        """What is done above ``base``, and what the next owner counts as losses, for the commit.

        What is taken counts one more, as if this worker were lost, unless the partition is ``handed_over``.
        """
        done = encode_runs(self.base, self.runs)
        told = encode_losses(self.base, self._next_losses(int(not handed_over)), METADATA_LIMIT - len(done or _VERSION))
        return (done or _VERSION) + told if told else done

    def losses_under(self, offset: int) -> int:
        """How many workers were lost under an offset that is not done."""
        place = bisect_right(self.losses, offset, key=itemgetter(0)) - 1
        return self.losses[place][2] if place >= 0 and offset < self.losses[place][1] else 0

    def forgive(self, offset: int) -> None:
        """One worker less was lost under this one; others may have been."""
        found: list[Losses] = []
        for start, end, n in self.losses:
            parts = [(start, min(end, offset), n), (max(start, offset + 1), end, n)]
            if start <= offset < end and n > 1:
                parts.insert(1, (offset, offset + 1, n - 1))
            found += [part for part in parts if part[0] < part[1]]
        self.losses = found

    def _next_losses(self, more: int) -> list[Losses]:
        """Of all from ``base`` on, with ``more`` for what is taken. Done offsets are among them, where nobody looks."""
        found: list[Losses] = []

        def tell(start: int, end: int, number: int) -> None:
            if start >= end or not number:
                return
            if found and found[-1][1:] == (start, number):
                start = found.pop()[0]
            found.append((start, end, number))

        at, taken = self.base, self.position
        for start, end, number in self.losses:
            tell(at, min(start, taken), more)
            at = max(at, start)
            tell(at, min(end, taken), number + more)
            tell(max(at, taken), end, number)
            at = max(at, end)
        tell(at, taken, more)
        return found

    def has_room(self) -> bool:
        """Whether one more can be taken so that, whatever finishes first, the metadata still holds it all."""
        if not self._outstanding:
            return True  # else runs that were read back could forbid the very task that dissolves them
        # Each run lies behind an offset that is not done: a taken one, or, for runs that were read back and
        # are still ahead, one that will be taken. So there can never be more runs than those.
        ahead = len(self._starts) - bisect_left(self._starts, self.position)
        runs = len(self._outstanding) + 1 + ahead
        span = max(self.position + 1, self._ends[-1] if self._ends else 0) - self.base
        if runs <= _FEW_RUNS and span < _SHORT_SPAN:
            return True
        return len(_VERSION) + _longest(2 * runs, span) <= METADATA_LIMIT

    def passing(self, kept: Iterable[int]) -> Window:
        """A copy in which ``kept`` are done too: for the commit past attempts that go on running here."""
        copy = Window(self.base, self.runs, self.losses)
        copy.position = self.position
        copy._outstanding = set(self._outstanding)
        for offset in kept:
            copy.finish(offset)
        return copy

    def _add(self, start: int, end: int) -> None:
        first = bisect_left(self._ends, start)
        last = bisect_right(self._starts, end)
        if first < last:
            start = min(start, self._starts[first])
            end = max(end, self._ends[last - 1])
        self._starts[first:last] = [start]
        self._ends[first:last] = [end]
        if self._starts[0] <= self.base:
            self.base = max(self.base, self._ends.pop(0))
            self._starts.pop(0)


def _longest(numbers: int, span: int) -> int:
    """At most how many digits ``numbers`` positive integers need whose sum is ``span`` or less."""
    # A number n takes at most 1 + log32(n) digits, and the sum of logarithms is largest for equal parts.
    return math.ceil(numbers * (1 + math.log(max(1.0, span / numbers), 32)))


def _encode_number(number: int) -> str:
    digits = []
    while number >= 32:
        digits.append(_DIGITS[32 + number % 32])
        number //= 32
    digits.append(_DIGITS[number])
    return "".join(digits)


def _decode_numbers(text: str) -> list[int] | None:
    numbers: list[int] = []
    number, scale = 0, 1
    for digit in text:
        value = _VALUE_OF.get(digit)
        if value is None:
            return None
        number += value % 32 * scale
        if value >= 32:
            scale *= 32
        else:
            numbers.append(number)
            number, scale = 0, 1
    return numbers if scale == 1 else None
