"""What was measured: samples by key, details by measure, and what makes them doubtful."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

from bench.accounting import Usage


def quantile(values: Iterable[float], share: float) -> float:
    """The smallest value that at least this share of them does not exceed; NaN without values."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else float("nan")


@dataclass(frozen=True)
class Spread:
    """A figure over its repeats."""

    median: float
    least: float
    most: float
    repeats: int


@dataclass
class Results:
    """Filled by the measures, one sample per key and repeat."""

    samples: dict[str, list[float]] = field(default_factory=dict)
    details: list[dict[str, Any]] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def add(self, key: str, value: float) -> None:
        """One more sample of a figure."""
        self.samples.setdefault(key, []).append(value)

    def detail(self, measure: str, shape: str, usage: Usage | None = None, **found: Any) -> None:
        """A line of the long table, with what was used meanwhile."""
        line: dict[str, Any] = {"measure": measure, "shape": shape, **found}
        if usage is not None:
            line |= {
                "seconds": usage.seconds,
                "busy_share": usage.busy_share,
                "foreign_share": usage.foreign_share,
                "steal_share": usage.steal_share,
                "commits_per_s": usage.commits / usage.seconds,
            }
            self.warnings += [f"{measure}, {shape}: {warning}" for warning in usage.warnings()]
        self.details.append(line)

    def spread(self, key: str) -> Spread:
        """Median, least and most of a key. Raises KeyError where nothing was measured."""
        values = self.samples[key]
        return Spread(statistics.median(values), min(values), max(values), len(values))

    def figures(self) -> dict[str, float]:
        """The median of every key."""
        return {key: self.spread(key).median for key in self.samples}

    def choose_best(
        self, key: str, candidates: Iterable[str], also: Iterable[str] = (), *, by: str = "steps_per_s"
    ) -> str:
        """Make ``key`` the best one of ``candidates`` (prefixes of keys); returns its prefix.

        Best is the highest median of ``by``, the lowest where that ends in ms. ``also`` are further endings of keys that
        come along, so that all are figures of the same shape.
        """
        measured = [each for each in candidates if f"{each}_{by}" in self.samples]
        choose = min if by.endswith("_ms") else max
        best = choose(measured, key=lambda each: self.spread(f"{each}_{by}").median)
        for ending in (by, *also):
            if f"{best}_{ending}" in self.samples:
                self.samples[f"{key}_{ending}"] = list(self.samples[f"{best}_{ending}"])
        return best

    def choose_worst(self, key: str, candidates: Iterable[str], better: Literal["higher", "lower"]) -> None:
        """Make ``key`` the one of ``candidates`` with the worst median."""
        worst = min if better == "higher" else max
        self.samples[key] = list(self.samples[worst(candidates, key=lambda each: self.spread(each).median)])
