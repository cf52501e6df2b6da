"""From a seed that fails to the least of its world that still does: fewer kinds of faults, fewer runs, fewer faults."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from ductor_stream.testing.simulation import Limits, Report, simulate

TRIES = 150
"""Worlds that are run at most: some ten seconds."""


class Shrunk(msgspec.Struct, frozen=True):
    """The least world that was found, and what it is like."""

    limits: Limits
    report: Report

    @property
    def options(self) -> str:
        """How the command line says it."""
        said = f"--seeds {self.report.seed}"
        if self.limits.without:
            said += f" --without {','.join(sorted(self.limits.without))}"
        if self.limits.dropped:
            said += f" --drop {','.join(sorted(self.limits.dropped))}"
        return said if self.limits.faults < 0 else f"{said} --faults {self.limits.faults}"


def shrink(failed: Report, limits: Limits | None = None, tries: int = TRIES) -> Shrunk:
    """Leave out of the seed what is not needed to break the same rule. ``failed`` is what it was like with ``limits``."""
    best = Shrunk(limits or Limits(), failed)
    rule = _rule(failed)
    tried: set[Limits] = set()
    progress = True
    while progress and tries > 0:
        progress = False
        for smaller in _smaller(best):
            if smaller in tried:
                continue
            tried.add(smaller)
            tries -= 1
            report = simulate(failed.seed, smaller)
            if _rule(report) == rule:
                best, progress = Shrunk(smaller, report), True
                break
            if tries <= 0:
                break
    return best


def _rule(report: Report) -> str:
    return report.broken.partition(":")[0]


def _smaller(best: Shrunk) -> Iterator[Limits]:
    """Worlds with less in them, those that leave out most first."""
    limits, report = best.limits, best.report
    faults = report.faults
    for fewer in dict.fromkeys([0, faults // 4, faults // 2, faults * 3 // 4, faults - 5, faults - 1]):
        if 0 <= fewer < faults:
            yield msgspec.structs.replace(limits, faults=fewer)
    for kind in report.kinds:
        yield msgspec.structs.replace(limits, without=limits.without | {kind})
    runs = list(report.asked)
    for size in dict.fromkeys([len(runs) // 2, len(runs) // 4, 1]):
        for first in range(0, len(runs), max(1, size)):
            yield msgspec.structs.replace(limits, dropped=limits.dropped.union(runs[first : first + size]))
