"""What the history looks like over time: throughput, latency, and which fault reigned when."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from chaos.history import History
from ductor_stream.engine.state import CLOSED

_BUCKETS = 240
"""Points of a line: a pixel or a few each."""


@dataclass(frozen=True)
class Bar:
    """One fault that reigned, in seconds since the beginning: until ``mending`` by itself, then until it was mended."""

    name: str
    told: str
    began: float
    mending: float
    mended: float


@dataclass(frozen=True)
class Series:
    """Lines over time. ``at`` are the middles of buckets, in seconds since the first message; None: nothing was there."""

    at: list[float]
    started: list[float]
    ended: list[float]
    executed: list[float]
    p50_s: list[float | None]
    p99_s: list[float | None]
    bars: list[Bar]
    calm_at: float

    def values(self) -> dict[str, Any]:
        """For programs."""
        return asdict(self)


def series_of(history: History) -> Series:
    """Count and sort by time."""
    starts = {sent.run: sent.first_at for sent in history.sent.values() if sent.type == "run.start"}
    ends = _ends(history)
    began = min(starts.values(), default=0.0)
    calm = [line["at"] for line in history.lines if line["what"] == "calm"]
    length = max([*starts.values(), *ends.values(), *calm], default=began) - began
    width = max(1.0, length / _BUCKETS)
    count = int(length / width) + 1

    def rate(times: Iterable[float]) -> list[float]:
        buckets = [0] * count
        for at in times:
            if 0 <= (index := int((at - began) / width)) < count:
                buckets[index] += 1
        return [round(number / width, 3) for number in buckets]

    latencies: dict[int, list[float]] = defaultdict(list)
    for run, at in ends.items():
        if run in starts:
            latencies[int((at - began) / width)].append(at - starts[run])
    return Series(
        at=[round((index + 0.5) * width, 2) for index in range(count)],
        started=rate(starts.values()),
        ended=rate(at for run, at in ends.items() if run in starts),
        executed=rate(each.at for each in history.executed),
        p50_s=[_part(latencies.get(index, []), 0.5) for index in range(count)],
        p99_s=[_part(latencies.get(index, []), 0.99) for index in range(count)],
        bars=_bars(history, began),
        calm_at=calm[0] - began if calm else 0.0,
    )


def latencies_of(history: History) -> tuple[float | None, float | None, float | None]:
    """From a client's start of a run to its hearing of the end: median, 99th percentile, the longest (seconds)."""
    starts = {sent.run: sent.first_at for sent in history.sent.values() if sent.type == "run.start"}
    found = [at - starts[run] for run, at in _ends(history).items() if run in starts]
    return _part(found, 0.5), _part(found, 0.99), _part(found, 1.0)


def _ends(history: History) -> dict[str, float]:
    """When each run was first heard to have ended."""
    ends: dict[str, float] = {}
    for line in history.lifecycle:
        if line["data"].get("status") in CLOSED:
            ends.setdefault(line["data"]["run_id"], line["at"])
    return ends


def _part(values: list[float], part: float) -> float | None:
    ordered = sorted(values)
    return round(ordered[min(len(ordered) - 1, int(part * len(ordered)))], 3) if ordered else None


def _bars(history: History, began: float) -> list[Bar]:
    steps: dict[int, dict[str, dict[str, Any]]] = defaultdict(dict)
    for line in history.lines:
        if line["what"] in ("fault", "holds", "mending", "mended"):
            steps[line["number"]][line["what"]] = line
    found = []
    for _, step in sorted(steps.items()):
        first = step["fault"]["at"]
        last = step.get("mended", step["fault"])["at"]
        mending = step.get("mending", step.get("mended", step["fault"]))["at"]
        told = step.get("holds", {}).get("told", "could not begin")
        found.append(Bar(step["fault"]["name"], told, first - began, mending - began, last - began))
    return found
